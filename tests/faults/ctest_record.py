"""What `make test` has just seen pass: ctest's log of a build folder, read so that tests need not run again where no fault is planted.

Believed only where nothing changed since: scripts/run_ctest.sh touches Testing/begun before the first test, and a record counts for an executable when
the log was ended behind that, and when the executable, what it is linked from, the program, and every file of the tree that tests may read are older.
Each test ran in a process of its own there, a filter's tests run in one here; run_faults.py has an eye on that.
"""
import os
import re
from functools import lru_cache
from pathlib import Path

READ = "tests share recipes docs src kernels scripts".split()  # folders of the tree that tests read
ENTRY = re.compile(r'^Command: "([^"\n]+)" "--gtest_filter=([^"\n]+)".*\n(?:.*\n)*?Output:\n-+\n((?:.*\n)*?)<end of output>\n'
                   r"Test time = +([\d.]+) sec\n-+\n(.*)$", re.M)


def newest_of(root):
    """When the youngest file that tests may read was written; not the faults' own, nor what Python leaves behind"""
    newest = 0.0
    for folder in READ:
        for place, folders, files in os.walk(root / folder):
            folders[:] = [name for name in folders if name != "__pycache__" and Path(place, name) != root / "tests/faults"]
            newest = max([newest, *(os.stat(os.path.join(place, name)).st_mtime for name in files)])
    return newest


class Record:
    def __init__(self, directory, root):
        self.outcomes = {}  # (executable, test) -> (whether it passed, seconds); False where it was skipped
        begun, log = directory / "Testing/begun", directory / "Testing/Temporary/LastTest.log"
        if not begun.exists() or not log.exists():
            return
        self.begun = begun.stat().st_mtime
        text = log.read_text(errors="replace")
        if log.stat().st_mtime < self.begun or newest_of(root) > self.begun or "\nEnd testing:" not in text:
            return
        for executable, test, said, seconds, verdict in ENTRY.findall(text):
            skipped = "[  SKIPPED ]" in said
            if verdict == "Test Passed." and "[  PASSED  ] 1 test." in said and not skipped or skipped and verdict == "Test Pass Reason:":
                self.outcomes[executable, test] = (not skipped, float(seconds))

    @lru_cache(maxsize=None)
    def is_of(self, files):
        """Whether all of these were there, as they are, when the first test began"""
        return all(os.path.exists(file) and os.stat(file).st_mtime < self.begun for file in files)

    def passed(self, executable, tests, files):
        """Of these tests, those that passed, and the seconds that all took; None where one is neither among those that passed nor was skipped,
        or where the executable or one of `files` is younger than the record"""
        known = [self.outcomes.get((str(executable), test)) for test in tests]
        if not known or None in known or not self.is_of((str(executable), *files)):
            return None
        return [test for test, (passed, _) in zip(tests, known) if passed], sum(seconds for _, seconds in known)
