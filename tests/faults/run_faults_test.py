#!/usr/bin/env python3
"""When run_faults.py calls a fault seen whose tests `make test` saw pass, each in a process of its own: over executables that are made up."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from run_faults import fails  # noqa: E402


class MadeUp:
    """Stands for a build, and for what tests say without a fault: `outcomes` of a filter, which tests begin and whether all pass"""
    def __init__(self, recorded, outcomes, unplanted=(1, True)):
        self.recorded = lambda target, names: recorded and (recorded, 1.5)
        self.outcomes, self.unplanted, self.asked = outcomes, unplanted, []

    def tests(self, executable, names, log, timeout, *options):
        begun, good = self.outcomes[names]
        self.asked.append((names, timeout))
        return 0, good, "".join(f"[ RUN      ] {test}\n" for test in begun)

    def ran(self, target, names):
        self.asked.append("unplanted")
        return *self.unplanted, [], 1.5

    def __call__(self, target, names):
        return 1, True, [], 1.5

    def seen(self, whole=False):
        return fails(self, "faulty", "target", "*", whole, self, [])


class FailsTest(unittest.TestCase):
    def test_the_first_test_of_a_process_fails_as_it_passed(self):
        made_up = MadeUp(["A.a", "A.b"], {"*": (["A.a"], False)})
        self.assertTrue(made_up.seen())
        self.assertEqual(made_up.asked, [("*", 50)])  # 20 s and twenty times what it took

    def test_a_later_one_runs_alone(self):
        made_up = MadeUp(["A.a", "A.b"], {"*": (["A.a", "A.b"], False), "A.b": (["A.b"], False)})
        self.assertTrue(made_up.seen())
        self.assertEqual(made_up.asked, [("*", 50), ("A.b", 50)])

    def test_what_fails_in_company_only_is_held_against_that_company_without_the_fault(self):
        for unplanted, seen in ((2, True), True), ((1, False), False), ((None, True), False):
            made_up = MadeUp(["A.a", "A.b"], {"*": (["A.a", "A.b"], False), "A.b": (["A.b"], True)}, unplanted)
            self.assertEqual(made_up.seen(), seen)
            self.assertEqual(made_up.asked[-1], "unplanted")

    def test_so_is_what_the_record_does_not_call_passed(self):
        self.assertFalse(MadeUp(["A.a"], {"*": (["A.other"], False)}, (1, False)).seen())

    def test_what_begins_no_test_says_something_of_the_whole_batch_alone(self):
        for recorded in ["A.a"], None:
            made_up = MadeUp(recorded, {"*": ([], False)})
            self.assertFalse(made_up.seen())
            self.assertTrue(made_up.seen(whole=True))

    def test_what_passes_is_not_seen(self):
        self.assertFalse(MadeUp(["A.a"], {"*": (["A.a"], True)}).seen())
        self.assertFalse(MadeUp(None, {"*": (["A.a"], True)}).seen())

    def test_without_a_record_it_ran_without_the_fault_before(self):
        made_up = MadeUp(None, {"*": (["A.a", "A.b"], False)})
        self.assertTrue(made_up.seen())
        self.assertEqual(made_up.asked, [("*", 50)])


if __name__ == "__main__":
    unittest.main()
