#!/usr/bin/env python3
"""Plants faults in the code, one at a time, and checks that the named tests see each of them.   run_faults.py BUILD [--seconds N] [NAME...]
                                                                          run_faults.py --texts: only that each edit applies

A fault is one edit of one source file. The edited copy lies in an overlay in front of the real tree, so the tree itself is never touched; only what
is edited is compiled, and linked in front of the archives of an existing build, which supply the rest (faulty_build.py). About as long as one
compilation of one file a fault. A fault fails the check when its edit does not apply, does not compile, or survives every named test, and when the
tests do not pass without any. What is not seen or does not compile is tried again with its whole batch before it is called missed. A fault whose
tests this processor skips (a CPU level that it lacks) is said to be skipped. After N seconds no further fault is begun, and how many were left is
said: the order is drawn by the commit, so that another commit leaves others.

Tests that `make test` has just seen pass with these very files do not run again without a fault (ctest_record.py). Each ran alone there. So where the
first that fails is not the first of its process, it runs alone with the fault, too; one that passes then says nothing, and all run without the fault.
"""
import argparse
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from ctest_record import Record  # noqa: E402
from faults import FAULTS  # noqa: E402
from faulty_build import ROOT, Build, Once  # noqa: E402

TIMEOUT = 1500  # seconds, where no fault is planted: longer than a test takes on any busy machine


def spaces_free(pattern):
    """The text to find, whatever spaces and line breaks the formatter put between its words."""
    return re.compile(r"\s+".join(re.escape(word) for word in pattern.split()))


class Unplanted:
    """What tests say where no fault is planted: by the record of `make test` where there is one, else by running them, once"""
    def __init__(self, build, record):
        self.build = build
        self.recorded = Once(lambda target, names: record.passed(build.executable(target), build.names(target, names), build.linked_from(target)))
        self.ran = Once(self.run)

    def run(self, target, names):
        """(how many passed, whether all did, log, seconds)"""
        log, start = [], time.time()
        return *self.build.tests(self.build.executable(target), names, log, TIMEOUT)[:2], log, time.time() - start

    def __call__(self, target, names):
        known = self.recorded(target, names)
        return (len(known[0]), True, [], known[1]) if known and known[0] else self.ran(target, names)


def misplaced(fault):
    """Why it can be seen by no test; None where it can."""
    found = len(spaces_free(fault.old).findall((ROOT / fault.file).read_text()))
    if found != 1:
        return f"the text to change occurs {found} times in {fault.file}"
    apart = [target for target, _ in fault.tests if not re.match(r"llmq_(unit|kernels|golden|counters)", target)]
    return f"{apart[0]} starts the built program, in which no fault is planted" if apart else None


def compiled_with_it(build, fault, overlay, whole, log):
    """(objects that hold the edit and behind them those of what else its batches hold, why there are none)"""
    objects, behind, done = [], [], []
    sources = fault.compiled or [fault.file]
    for source in sources:
        batch = build.batches[source]
        if batch in done:
            continue
        done.append(batch)
        in_archive = not any(build.built(source) in build.link_command(target) for target, _ in fault.tests)
        some = batch if whole or in_archive and build.faults_of[batch] < 2 else tuple(other for other in batch if other in sources)
        objects.append(overlay / f"{len(objects)}.o")
        if not build.compile(some, overlay, objects[-1], not whole, log):
            return [], f"{source} does not compile with it"
        if in_archive and len(some) < len(batch):
            if build.makes_what_others_use(objects[-1]):
                return [], f"{source} has initialisers of what others use, which would run twice"
            behind.append(build.unedited(batch))
            if behind[-1] is None:
                return [], f"the batch of {source} does not compile so"
    return objects + behind, ""


def fails(build, faulty, target, names, whole, unplanted, log):
    """Whether tests that pass without the fault fail with it. What ends before its first test may do so by the way it was put together, and says
    something where it holds the whole batch alone."""
    patience = 20 + 20 * unplanted(target, names)[-1]  # some faults leave a thread that waits for ever
    options = ["--gtest_break_on_failure"]  # the first failure is enough
    _, good, said = build.tests(faulty, names, log, patience, *options)
    recorded = unplanted.recorded(target, names)
    begun = re.findall(r"^\[ RUN      \] (\S+?),?$", said, re.M)
    if good or not begun and not whole:
        return False
    if recorded is None:
        return True
    if begun and begun[-1] in recorded[0]:
        if len(begun) == 1 or not build.tests(faulty, begun[-1], log, patience, *options)[1]:
            return True
    passed, good, said, _ = unplanted.ran(target, names)  # as they ran with it: in one process
    log += said
    return bool(passed) and good


def tried(build, fault, overlay, whole, unplanted, log):
    """(whether every test sees it, words)"""
    objects, why = compiled_with_it(build, fault, overlay, whole, log)
    if why:
        return False, why
    replaced = [build.built(source) for source in fault.compiled or [fault.file]]
    for target, names in fault.tests:
        faulty = overlay / target
        if not build.link(target, objects, replaced, faulty, log):
            return False, f"{target} does not link with it"
        seen = fails(build, faulty, target, names, whole, unplanted, log)
        faulty.unlink()
        if not seen:
            return False, f"SURVIVED {target} {names}"
    return True, ", ".join(names for _, names in fault.tests)


def check(build, fault, unplanted):
    """(seen, words, log); seen is None where nothing could be tried"""
    log = []
    if why := misplaced(fault):
        return False, why, log
    for source in fault.compiled or [fault.file]:
        if source not in build.compilations:
            return False, f"{source} is compiled by nothing: a fault in a header names what includes it", log
    for target, names in fault.tests:
        passed, good, said, _ = unplanted(target, names)
        log += said
        if passed is None:
            return None, f"{target} {names} is skipped here", log
        if passed == 0 or not good:
            return False, f"{target} {names} does not pass without it", log
    overlay = build.work / fault.name
    shutil.rmtree(overlay, ignore_errors=True)  # of an entry that edited another file
    edited = overlay / fault.file
    edited.parent.mkdir(parents=True, exist_ok=True)
    edited.write_text(spaces_free(fault.old).sub(lambda _: fault.new, (ROOT / fault.file).read_text()))
    seen, words = tried(build, fault, overlay, False, unplanted, log)
    if not seen:
        first = words
        seen, words = tried(build, fault, overlay, True, unplanted, log)
        words += f" (whole batch: {first})" if seen else ""
    return seen, words, log


def drawn_order(faults):
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return random.Random(commit).sample(faults, len(faults))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", action="store_true", help="only check that each edit applies")
    parser.add_argument("build", nargs="?", help="a build of everything that `make test` runs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no fault after so many")
    parser.add_argument("names", nargs="*", help="of faults; all of them when none is named")
    asked_for = parser.parse_intermixed_args()
    if asked_for.texts:
        faults = [f"{fault.name}: {why}" for fault in FAULTS if (why := misplaced(fault))]
        print("\n".join(faults) or f"the edits of {len(FAULTS)} faults apply")
        return 1 if faults else 0
    if not asked_for.build:
        parser.error("name a build folder, or --texts")
    chosen = [f for f in drawn_order(FAULTS) if not asked_for.names or f.name in asked_for.names]
    build = Build(asked_for.build, [source for f in chosen for source in f.compiled or [f.file]])
    record = Record(build.directory, ROOT)
    print(f"{len(record.outcomes)} tests are known from the last run of ctest", flush=True)
    unplanted = Unplanted(build, record)
    start = time.time()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # tests die of their first failure

    def check_in_time(fault):
        return check(build, fault, unplanted) if time.time() - start < asked_for.seconds else None

    begun, survivors = [], 0
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
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
    planted = len(begun) - skipped
    print(f"{planted - survivors} of {planted} planted faults were seen, {skipped} skipped, {len(chosen) - len(begun)} not begun in time, in {time.time() - start:.0f} s")
    return 1 if survivors or not planted else 0


if __name__ == "__main__":
    sys.exit(main())
