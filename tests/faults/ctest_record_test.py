#!/usr/bin/env python3
"""What ctest_record.py believes of a record, and what not: ctest writes it here, of an "executable" of four tests, through scripts/run_ctest.sh."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from ctest_record import Record  # noqa: E402

RUN = Path(__file__).resolve().parents[2] / "scripts/run_ctest.sh"
PROGRAM = """#!/bin/sh
case $1 in
*Skips) echo '[  SKIPPED ] Suite.Skips (0 ms)'; echo '[  PASSED  ] 0 tests.' ;;
*Fails) echo '[  FAILED  ] Suite.Fails'; exit 1 ;;
*Nothing) echo '[  PASSED  ] 0 tests.' ;;
*) echo '[  PASSED  ] 1 test.' ;;
esac
"""


class RecordTest(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.root = Path(place.name).resolve()
        self.build = self.root / "build"
        (self.root / "tests").mkdir()
        self.build.mkdir()
        self.program, self.library, self.text = self.build / "program", self.build / "library.a", self.root / "tests/text"
        for file in (self.program, self.library, self.text):
            self.write(file, -100)
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        os.utime(self.program, (os.stat(self.text).st_mtime,) * 2)
        skip = 'set_tests_properties(Skips PROPERTIES SKIP_REGULAR_EXPRESSION "\\\\[  SKIPPED \\\\]")\n'
        names = ("Passes", "Passes/small", "Skips", "Fails", "Nothing")
        tests = [f'add_test({name} "{self.program}" "--gtest_filter=Suite.{name}" "--gtest_also_run_disabled_tests")\n' for name in names]
        (self.build / "CTestTestfile.cmake").write_text("".join(tests) + skip)
        subprocess.run([RUN, str(self.build)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def write(self, file, seconds):
        """Makes it so many seconds younger than now"""
        now = os.stat(self.build).st_mtime
        file.touch()
        os.utime(file, (now + seconds,) * 2)

    def passed(self, *names):
        """The tests that the record says passed; None where it says nothing of one"""
        known = Record(self.build, self.root).passed(self.program, [f"Suite.{name}" for name in names], (str(self.library),))
        return known and known[0]

    def test_passed_tests_are_known_and_skipped_ones_did_not_pass(self):
        self.assertEqual(self.passed("Passes", "Passes/small"), ["Suite.Passes", "Suite.Passes/small"])
        self.assertEqual(self.passed("Passes", "Skips"), ["Suite.Passes"])
        self.assertEqual(self.passed("Skips"), [])

    def test_one_that_failed_ran_nothing_or_was_not_run_is_unknown(self):
        for name in ("Fails", "Nothing", "Other"):
            self.assertIsNone(self.passed("Passes", name), name)
        self.assertIsNone(self.passed())

    def test_nothing_is_known_of_what_changed_since(self):
        for file in (self.program, self.library, self.text):
            self.write(file, 100)
            self.assertIsNone(self.passed("Passes"), file)
            self.write(file, -100)
            self.assertEqual(self.passed("Passes"), ["Suite.Passes"])

    def test_nothing_is_known_of_what_is_gone(self):
        self.library.unlink()
        self.assertIsNone(self.passed("Passes"))

    def test_a_run_that_was_stopped_is_no_record(self):
        log = self.build / "Testing/Temporary/LastTest.log"
        log.write_text(log.read_text().replace("End testing:", ""))
        self.assertIsNone(self.passed("Passes"))

    def test_a_run_that_began_later_is_another(self):
        self.write(self.build / "Testing/begun", 100)
        self.assertIsNone(self.passed("Passes"))


if __name__ == "__main__":
    unittest.main()
