"""Objects and executables that hold an edit, beside those of an existing build, which is only read.

An edited source is compiled with those of its batch that may hold copies of its functions (copies.py), although the build compiles the whole batch
as one; the rest comes from the batch's object in its archive. The edited definitions stand in front, and the linker is told to take the first. So
every call reaches the edit, as if the whole batch had been compiled; that is done where initialisers make what others use, which would be made twice,
and before a fault is called missed. clang compiles and lld links where there are such, in a third of the time (docs/testing.md has figures): the code has
to give the same results by either compiler, which `make sanitize` tests.
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from threading import Lock

from copies import ROOT, holders

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
    def __init__(self, directory):
        self.directory = Path(directory).resolve()
        self.work = self.directory / "faults"
        commands = json.loads((self.directory / "compile_commands.json").read_text())
        self.compilations = {}  # of each source, and of those that are compiled as one with it
        self.batches = {}  # what is compiled as one with each source, it among them
        for command in commands:
            file = command["file"]
            parts = re.findall(r'^#include "(.+)"$', Path(file).read_text(), re.M) if "/Unity/" in file else [file]
            parts = [os.path.relpath(part, ROOT) for part in parts]
            for part in parts:
                self.compilations[part] = command["command"]
                self.batches[part] = parts
        self.ahead = Once(self.make_ahead)
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

    @lru_cache(maxsize=None)
    def holders(self, sources):
        """`sources`, of one batch, and what of it may hold copies of their functions, in the batch's order"""
        batch = self.batches[sources[0]]
        if len(sources) == len(batch):
            return batch
        return holders(sources, batch, self.run(["nm", "-C", "--defined-only", self.built(sources[0])], []).stdout)

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
            ours = not any(overlay.rglob("*.h"))  # an edited header has to be read from the overlay
            ahead = ["-include-pch", str(self.ahead(ours))] if not any(word.startswith("-m") for word in command) else []
            return self.run([CLANG, *alone(command)[1:], *ahead, *SOONER], log).returncode == 0
        return self.run(command + SHORTER, log).returncode == 0

    def make_ahead(self, ours):
        """The headers that nearly every source includes, read once, with those of ours where none of them is edited"""
        self.work.mkdir(parents=True, exist_ok=True)
        name = "ahead_with_ours" if ours else "ahead"
        text, output, log = self.work / f"{name}.h", self.work / f"{name}.pch", []
        text.write_text("".join(f"#include <{header}>\n" for header in AHEAD) + "".join(f'#include "{header}"\n' for header in OURS_AHEAD if ours))
        command = next(words for source in self.compilations if source.startswith("src/") for words in [self.command(source)])
        command[command.index("-o") + 1] = str(output)
        del command[command.index("-c") :]
        if self.run([CLANG, *alone(command)[1:], *SOONER, "-x", "c++-header", str(text)], log).returncode != 0:
            sys.exit("".join(log))
        return output

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

    def tests(self, executable, names, log, timeout, *options):
        """(how many passed, whether all did); (None, True) where this machine skips them all"""
        command = [str(executable), f"--gtest_filter={names}", "--gtest_brief=1", "--gtest_fail_fast", *options]
        try:
            result = self.run(command, log, timeout=timeout)
        except subprocess.TimeoutExpired:
            return 0, False
        passed = re.search(r"\[  PASSED  \] (\d+) test", result.stdout)
        if result.returncode == 0 and passed and int(passed.group(1)) == 0 and "[  SKIPPED ]" in result.stdout:
            return None, True
        return int(passed.group(1)) if passed else 0, result.returncode == 0
