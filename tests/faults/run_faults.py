#!/usr/bin/env python3
"""Plants faults in the code, one at a time, and checks that the named tests see each of them.   run_faults.py BUILD [--seconds N] [NAME...]
                                                                          run_faults.py --texts: only that each edit applies

A fault is one edit of one source file. The edited copy lies in an overlay in front of the real tree, so the tree itself is never touched; only the
objects that hold the edit are compiled, and they are linked in front of the archives of an existing build, which supply the rest. About as long as one
compilation and one link a fault. A fault fails the check when its edit does not apply, does not compile, or survives every named test, and when the
tests do not pass without any. A fault whose tests this processor skips (a CPU level that it lacks) is said to be skipped. After N seconds no further
fault is begun, and how many were left is said: the order is drawn by the commit, so that another commit leaves others.
"""
import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from faults import FAULTS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 300  # seconds, where no fault is planted


def spaces_free(pattern):
    """The text to find, whatever spaces and line breaks the formatter put between its words."""
    return re.compile(r"\s+".join(re.escape(word) for word in pattern.split()))


class Build:
    def __init__(self, directory):
        self.directory = Path(directory).resolve()
        self.work = self.directory / "faults"
        commands = json.loads((self.directory / "compile_commands.json").read_text())
        self.compilations = {}  # of each source, and of those that are compiled as one with it
        self.together = {}  # the file that includes these
        for command in commands:
            file = Path(command["file"])
            parts = re.findall(r'^#include "(.+)"$', file.read_text(), re.M) if "/Unity/" in str(file) else []
            for part in parts or [file]:
                self.compilations[os.path.relpath(part, ROOT)] = command
                if parts:
                    self.together[os.path.relpath(part, ROOT)] = file

    def run(self, arguments, log, **options):
        result = subprocess.run(arguments, cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
        log.append(result.stdout)
        return result

    def compiled_with(self, source, other):
        """Whether the two are compiled as one."""
        return source in self.together and self.together[source] == self.together.get(other)

    def compile(self, source, overlay, output, log):
        """The object that holds `source` as the build makes it, but for headers and text that lie in the overlay."""
        if source not in self.compilations:
            log.append(f"{source} is compiled by nothing: a fault in a header names what includes it")
            return False
        command = shlex.split(self.compilations[source]["command"])
        if os.path.basename(command[0]) == "ccache":
            command = command[1:]

        def as_edited(file):
            edited = overlay / os.path.relpath(file, ROOT)
            return edited if edited.exists() else file

        text = as_edited(ROOT / source)
        if source in self.together:
            text = output.with_suffix(".cpp")
            text.write_text(re.sub(r'^#include "(.+)"$', lambda m: f'#include "{as_edited(Path(m[1]))}"', self.together[source].read_text(), flags=re.M))
        command[command.index("-o") + 1] = str(output)
        command[command.index("-c") + 1] = str(text)
        command[1:1] = [f"-I{overlay}/src", f"-I{overlay}"]
        command += ["-O0", "-Wno-invalid-pch"]  # no result depends on -O0, and it compiles sooner; headers compiled ahead for -O2 are then read as text
        return self.run(command, log).returncode == 0

    def link(self, target, objects, output, log):
        """The executable of `target` with `objects` in front: their archives' twins are then never taken."""
        commands = subprocess.run(["ninja", "-t", "commands", target], cwd=self.directory, stdout=subprocess.PIPE, text=True, check=True).stdout
        link = commands.strip().splitlines()[-1]
        words = shlex.split(next(part for part in link.split("&&") if " -o " in part))
        if os.path.basename(words[0]) == "ccache":
            words = words[1:]
        words[words.index("-o") + 1] = str(output)
        first = next(i for i, word in enumerate(words) if word.endswith(".o"))
        return self.run(words[:first] + [str(o) for o in objects] + words[first:], log).returncode == 0

    def executable(self, target):
        return next(p for p in (self.directory / "tests").rglob(target) if p.is_file())

    def tests(self, executable, names, log, timeout=TIMEOUT):
        """(how many passed, whether all did); (None, True) where this machine skips them all"""
        try:
            result = self.run([str(executable), f"--gtest_filter={names}", "--gtest_brief=1"], log, timeout=timeout)
        except subprocess.TimeoutExpired:
            return 0, False
        passed = re.search(r"\[  PASSED  \] (\d+) test", result.stdout)
        if result.returncode == 0 and passed and int(passed.group(1)) == 0 and "[  SKIPPED ]" in result.stdout:
            return None, True
        return int(passed.group(1)) if passed else 0, result.returncode == 0


def unplanted(build, target, names):
    """(how many passed, whether all did, log, seconds), once for all faults that ask for these tests"""
    log, start = [], time.time()
    return *build.tests(build.executable(target), names, log), log, time.time() - start


def misplaced(fault):
    """Why it can be seen by no test; None where it can."""
    found = len(spaces_free(fault.old).findall((ROOT / fault.file).read_text()))
    if found != 1:
        return f"the text to change occurs {found} times in {fault.file}"
    apart = [target for target, _ in fault.tests if not re.match(r"llmq_(unit|kernels|golden|counters)", target)]
    return f"{apart[0]} starts the built program, in which no fault is planted" if apart else None


def check(build, fault, without):
    """(seen, words, log); seen is None where nothing could be tried. `without`: what the tests say where no fault is planted"""
    log = []
    if why := misplaced(fault):
        return False, why, log
    text = (ROOT / fault.file).read_text()
    overlay = build.work / fault.name
    edited = overlay / fault.file
    edited.parent.mkdir(parents=True, exist_ok=True)
    edited.write_text(spaces_free(fault.old).sub(lambda _: fault.new, text))
    objects = []
    sources = fault.compiled or [fault.file]
    for number, source in enumerate(sources):
        if any(build.compiled_with(source, other) for other in sources[:number]):
            continue
        objects.append(overlay / f"{number}.o")
        if not build.compile(source, overlay, objects[-1], log):
            return False, f"{source} does not compile with it", log
    for target, names in fault.tests:
        passed, good, said, seconds = without[target, names]
        log += said
        if passed is None:
            return None, f"{target} {names} is skipped here", log
        if passed == 0 or not good:
            return False, f"{target} {names} does not pass without it", log
        faulty = overlay / target
        if not build.link(target, objects, faulty, log):
            return False, f"{target} does not link with it", log
        _, good = build.tests(faulty, names, log, timeout=20 + 20 * seconds)  # some faults leave a thread that waits for ever
        faulty.unlink()
        if good:
            return False, f"SURVIVED {target} {names}", log
    return True, ", ".join(names for _, names in fault.tests), log


def drawn_order(faults):
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return random.Random(commit).sample(faults, len(faults))


def main():
    parser = argparse.ArgumentParser()
    if sys.argv[1:] == ["--texts"]:
        faults = [f"{fault.name}: {why}" for fault in FAULTS if (why := misplaced(fault))]
        print("\n".join(faults) or f"the edits of {len(FAULTS)} faults apply")
        return 1 if faults else 0
    parser.add_argument("build")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("names", nargs="*")
    asked_for = parser.parse_intermixed_args()
    build = Build(asked_for.build)
    chosen = [f for f in drawn_order(FAULTS) if not asked_for.names or f.name in asked_for.names]
    start = time.time()

    def check_in_time(fault):
        return check(build, fault, without) if time.time() - start < asked_for.seconds else None

    begun, survivors = [], 0
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        asked = sorted({(target, names) for fault in chosen for target, names in fault.tests})
        without = dict(zip(asked, pool.map(lambda test: unplanted(build, *test), asked)))
        for fault, outcome in zip(chosen, pool.map(check_in_time, chosen)):
            if outcome is None:
                continue
            begun.append((fault, outcome))
            seen, words, log = outcome  # said at once: who is stopped has said what was found
            print(f"{'skipped' if seen is None else 'seen   ' if seen else 'MISSED '} {fault.name}: {words}", flush=True)
            if seen is False:
                survivors += 1
                print("".join(log)[-3000:], flush=True)
    skipped = sum(seen is None for _, (seen, _, _) in begun)
    tried = len(begun) - skipped
    print(f"{tried - survivors} of {tried} planted faults were seen, {skipped} skipped, {len(chosen) - len(begun)} not begun in time, in {time.time() - start:.0f} s")
    return 1 if survivors or not tried else 0


sys.exit(main())
