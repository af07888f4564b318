"""Objects and executables that hold an edit, beside those of an existing build, which is only read.

The build compiles a source as one with its neighbours and may copy its functions into theirs. So the whole batch is compiled once more without
optimizing, which copies nothing and calls by name, and stands behind the edited source, which alone is compiled for each fault: the linker is told to
take the first of two definitions, and every call reaches the edit. A batch of one fault is compiled with it, once. The build's own compiler makes the
whole batch where initialisers make what others use, which would be made twice, and before a fault is called missed. Otherwise clang compiles and lld
links where there are such, in a third of the time (docs/testing.md has figures): the code has to give the same results by either compiler, which
`make sanitize` tests. What sources include is read ahead, once for all, and once for a batch.
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parents[2]
SHORTER = ["-O0", "-Wno-invalid-pch"]  # no result depends on -O0, and it compiles sooner; headers compiled ahead for -O2 are then read as text
# Without the kernels' attribute: at -O0 their vectors' functions, copied into each kernel, take 20 s.
SOONER = ["-O0", "-w", "-Dalways_inline="]
AHEAD = """algorithm array atomic charconv chrono cmath condition_variable cstdint cstdlib cstring functional limits map memory mutex numeric optional set
span string string_view unordered_map utility variant vector fmt/format.h""".split()
OURS_AHEAD = """base/error.h base/io.h base/json.h base/log.h base/threads.h io/checkpoint.h device/backend.h model/model_spec.h model/linear_source.h
tensor/quantized_matrix.h""".split()
CLANG = shutil.which("clang++")
LINKER = ["-Wl,--allow-multiple-definition"] + (["-fuse-ld=lld", "-Wl,--threads=1"] if shutil.which("ld.lld") else [])


def alone(command):
    """It without the headers that another compiler read ahead"""
    at = command.index("-include") if "-include" in command else len(command)
    return command[:at] + command[at + 2 :]


class Once:
    """function(*arguments), run once for all threads that ask for it"""
    def __init__(self, function):
        self.function, self.lock, self.locks, self.known = function, Lock(), {}, {}

    def __call__(self, *arguments):
        with self.lock:
            mine = self.locks.setdefault(arguments, Lock())
        with mine:
            if arguments not in self.known:
                self.known[arguments] = self.function(*arguments)
            return self.known[arguments]


class Build:
    def __init__(self, directory, edited):
        """`edited`: the sources of every fault that will be tried, each as often as there are faults"""
        self.directory = Path(directory).resolve()
        self.work = self.directory / "faults"
        commands = json.loads((self.directory / "compile_commands.json").read_text())
        self.compilations = {}  # of each source, and of those that are compiled as one with it
        self.batches = {}  # what is compiled as one with each source, it among them
        for command in commands:
            file = command["file"]
            parts = re.findall(r'^#include "(.+)"$', Path(file).read_text(), re.M) if "/Unity/" in file else [file]
            parts = tuple(os.path.relpath(part, ROOT) for part in parts)
            for part in parts:
                self.compilations[part] = command["command"]
                self.batches[part] = parts
        self.faults_of = Counter(self.batches[source] for source in edited if source in self.batches)
        self.ahead = Once(self.make_ahead)
        self.unedited = Once(self.make_unedited)
        self.link_command = Once(self.read_link_command)

    def run(self, arguments, log, **options):
        result = subprocess.run(arguments, cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
        log.append(result.stdout)
        return result

    def command(self, source):
        """What compiles it, as words"""
        words = shlex.split(self.compilations[source])
        return words[1:] if os.path.basename(words[0]) == "ccache" else words

    def built(self, source):
        """The build's own object that holds it, as the build names it"""
        words = self.command(source)
        return words[words.index("-o") + 1]

    def makes_what_others_use(self, object):
        """Whether it has initialisers and variables of external linkage that they may make; those of a source's own may be made twice"""
        symbols = self.run(["nm", "--defined-only", str(object)], []).stdout
        return "_GLOBAL__sub_I_" in symbols and re.search(r" B ", symbols) is not None

    def compile(self, sources, overlay, output, soon, log):
        """The object that holds `sources`, of one batch, as the build makes it, but for headers and text that lie in the overlay; `soon` as clang
        makes it, where there is one."""
        def as_edited(source):
            return overlay / source if (overlay / source).exists() else ROOT / source

        text = as_edited(sources[0])
        if len(sources) > 1:
            text = output.with_suffix(".cpp")
            text.write_text("".join(f'#include "{as_edited(source)}"\n' for source in sources))
        command = self.command(sources[0])
        command[command.index("-o") + 1] = str(output)
        command[command.index("-c") + 1] = str(text)
        command[1:1] = [f"-I{overlay}/src", f"-I{overlay}"]
        if soon and CLANG:
            edited = {str(ROOT / file.relative_to(overlay)) for file in overlay.rglob("*.*")}
            ahead = self.ahead_of(self.batches[sources[0]], edited) if not any(word.startswith("-m") for word in command) else []
            return self.run([CLANG, *alone(command)[1:], *ahead, *SOONER], log).returncode == 0
        return self.run(command + SHORTER, log).returncode == 0

    def ahead_of(self, batch, edited):
        """Of what is read ahead the most that no edited header is in, which has to be read from the overlay"""
        for whose in (*([batch] if self.faults_of[batch] > 1 else []), "ours", "standard"):
            output, read = self.ahead(whose)
            if not read & edited:
                return ["-include-pch", str(output)]
        return []

    def make_ahead(self, whose):
        """(headers read once, the files of ours that they are): the standard's, on top of them those that nearly every source of ours includes, and
        on top of these what the sources of a batch include, where that can be read ahead"""
        self.work.mkdir(parents=True, exist_ok=True)
        below, read = [], frozenset()
        if whose == "standard":
            lines = [f"#include <{header}>" for header in AHEAD]
        elif whose == "ours":
            lines = [f'#include "{header}"' for header in OURS_AHEAD]
            below, read = self.ahead("standard")
        else:
            lines = [line for source in whose for line in included_by(source)]
            below, read = self.ahead("ours")
        source = whose[0] if isinstance(whose, tuple) else next(source for source in self.compilations if source.startswith("src/"))
        name = f"ahead_{re.sub(r'[^0-9A-Za-z]', '_', source)}" if isinstance(whose, tuple) else f"ahead_{whose}"
        text, output, needs, log = self.work / f"{name}.h", self.work / f"{name}.pch", self.work / f"{name}.d", []
        text.write_text("".join(f"{line}\n" for line in dict.fromkeys(lines)))
        command = self.command(source)
        command[command.index("-o") + 1] = str(output)
        del command[command.index("-c") :]
        on_top = ["-include-pch", str(below)] if below else []
        flags = ["-fpch-instantiate-templates", "-MD", "-MF", str(needs), "-x", "c++-header", str(text)]
        if self.run([CLANG, *alone(command)[1:], *on_top, *SOONER, *flags], log).returncode != 0:
            if isinstance(whose, tuple):
                return below, read
            sys.exit("".join(log))
        return output, read | {os.path.normpath(word) for word in needs.read_text().split() if word.startswith(str(ROOT))}

    def make_unedited(self, batch):
        """The object of a whole batch, in which nothing is copied from source to source; None where it does not compile so"""
        self.work.mkdir(parents=True, exist_ok=True)
        output = self.work / f"unedited_{re.sub(r'[^0-9A-Za-z]', '_', batch[0])}.o"
        return output if self.compile(batch, self.work / "unedited", output, True, []) else None

    def read_link_command(self, target):
        commands = subprocess.run(["ninja", "-t", "commands", target], cwd=self.directory, stdout=subprocess.PIPE, text=True, check=True).stdout
        link = commands.strip().splitlines()[-1]
        words = shlex.split(next(part for part in link.split("&&") if " -o " in part))
        return words[1:] if os.path.basename(words[0]) == "ccache" else words

    def link(self, target, objects, replaced, output, log):
        """The executable of `target` with `objects` in front of the archives, without those of its own that they replace"""
        words = [word for word in self.link_command(target) if word not in replaced]
        words[words.index("-o") + 1] = str(output)
        first = next(i for i, word in enumerate(words) if word.endswith((".o", ".a")))
        return self.run(words[:first] + [str(o) for o in objects] + words[first:] + LINKER, log).returncode == 0

    @lru_cache(maxsize=None)
    def executable(self, target):
        return next(p for p in (self.directory / "tests").rglob(target) if p.is_file())

    def linked_from(self, target):
        """The files of the build that the executable is linked from, and the program, which some tests start"""
        files = [self.directory / word for word in self.link_command(target) if word.endswith((".o", ".a", ".so"))]
        return tuple(str(file) for file in files) + (str(self.directory / "tools/llmq"),)

    def names(self, target, names):
        """The tests that a filter selects"""
        listed = self.run([str(self.executable(target)), f"--gtest_filter={names}", "--gtest_list_tests"], []).stdout
        found, suite = [], ""
        for line in listed.splitlines():
            word = line.split("#")[0].strip()
            if line.startswith("  "):
                found.append(suite + word)
            elif word.endswith("."):
                suite = word
        return [name for name in found if "DISABLED_" not in name]

    def tests(self, executable, names, log, timeout, *options):
        """(how many passed, whether all did, what they said); (None, True, ...) where this machine skips them all"""
        command = [str(executable), f"--gtest_filter={names}", "--gtest_fail_fast", *options]
        try:
            said = self.run(command, log, timeout=timeout)
        except subprocess.TimeoutExpired as late:
            return 0, False, (late.stdout or b"").decode(errors="replace")
        passed = re.search(r"\[  PASSED  \] (\d+) test", said.stdout)
        if said.returncode == 0 and passed and int(passed.group(1)) == 0 and "[  SKIPPED ]" in said.stdout:
            return None, True, said.stdout
        return int(passed.group(1)) if passed else 0, said.returncode == 0, said.stdout


def included_by(source):
    """Its lines of #include; those beside it by their whole path"""
    def found(match):
        beside = (ROOT / source).parent / match[1]
        return f'#include "{beside}"' if beside.exists() else match[0]

    return [re.sub(r'#\s*include "(.+?)"', found, line) for line in re.findall(r'^#\s*include [<"][^>"]+[>"]', (ROOT / source).read_text(), re.M)]
