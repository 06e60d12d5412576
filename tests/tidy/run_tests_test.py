"""Tests of tools/run_tests.py over a fake ctest and a fake pytest: which run is red, and why."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import run_tests  # noqa: E402  (found only after the line above)

# argv: a JSON file {"fails": [[names of the first run], [names of the second]], "code": C or null}.
# Each prints the real program's text around the names; the first run has four tests.
FAKE_CTEST = r'''
import json, sys
plan = json.load(open(sys.argv[1]))
if "--show-only=json-v1" in sys.argv:
    print(json.dumps({"tests": [
        {"name": name, "properties": [{"name": "TIMEOUT", "value": plan["limit"]}]}
        for name in plan["names"][:1]]}))
    sys.exit(0)
second = "--rerun-failed" in sys.argv
names = plan["fails"][0] if second else plan["names"]
bad = plan["fails"][second]
for i, name in enumerate(names, 1):
    print(f"    Start {i}: {name}")
    if name in bad:
        print(f"{i}/{len(names)} Test #{i}: {name} ...***Failed    0.01 sec\nsaid by {name}\n")
    else:
        print(f"{i}/{len(names)} Test #{i}: {name} ............   Passed    0.01 sec")
passed = len(names) - len(bad)
print(f"\n{100 * passed // len(names)}% tests passed, {len(bad)} tests failed out of {len(names)}")
print("\nLabel Time Summary:\nunit = 0.02 sec*proc (4 tests)\n\nTotal Test time (real) = 0.02 sec")
if bad:
    print("\nThe following tests FAILED:")
    for i, name in enumerate(bad, 1):
        print(f"\t{i:3} - {name} (Failed)")
    print("Errors while running CTest")
sys.exit(plan["code"] if plan["code"] is not None else 8 if bad else 0)
'''
FAKE_PYTEST = r'''
import json, sys
plan = json.load(open(sys.argv[1]))
second = "-rA" in sys.argv
names = plan["fails"][0] if second else plan["names"]
assert not second or sys.argv[-len(names):] == names, sys.argv
bad = plan["fails"][second]
print("some output\nFAILED is only a word here")
if plan["limit"] < 1:
    print("=========== slowest 20 durations ===========\n181.25s call     " + names[0])
print("=========== short test summary info ===========")
for name in names:
    if name in bad:
        print(f"FAILED {name} - AssertionError: 1 - 2")
    elif second:
        print(f"PASSED {name}")
counts = [f"{len(bad)} failed"] * bool(bad) + [f"{len(names) - len(bad)} passed", "1 skipped"]
print(f"===== {', '.join(counts)} in 411.07s (0:06:51) =====")
sys.exit(plan["code"] if plan["code"] is not None else 1 if bad else 0)
'''
CTESTS = ["Round.A", "Round.B", "Names/Round.C/x", "tidy_style", "Round.E"]
PYTESTS = [f"tests/e2e/test_x.py::test_a[{p}]" for p in ("one", "two", "a b", "a - b", "e")]


class Run:
    """One run of both suites; its output and the exit code."""

    def __init__(self, ctest=((), ()), pytest=((), ()), codes=(None, None), pytests=PYTESTS,
                 limit=300):
        with tempfile.TemporaryDirectory() as folder:
            self._folder, self._limit = pathlib.Path(folder), limit
            chosen = run_tests.Selection()
            suites = (
                run_tests.Ctest(chosen, self._fake("ctest", FAKE_CTEST, CTESTS, ctest, codes[0])),
                run_tests.Pytest(
                    chosen, self._fake("pytest", FAKE_PYTEST, pytests, pytest, codes[1])))
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                outcomes = [run_tests.run_suite(suite, self._folder) for suite in suites]
                self.code = run_tests.report(outcomes, self._folder)
            _, _, self.summary = printed.getvalue().partition("== summary ==\n")
            self.flaky = (self._folder / "flaky.txt").read_text().splitlines()

    def _fake(self, name, text, names, fails, code):
        program, plan = self._folder / f"{name}.py", self._folder / f"{name}.json"
        program.write_text(text)
        plan.write_text(json.dumps(
            {"names": names, "fails": fails, "code": code, "limit": self._limit}))
        return [sys.executable, str(program), str(plan)]


def some(names, count):
    return list(names[:count])


class Verdicts(unittest.TestCase):
    """The summary's text, and the exit code."""

    def test_all_green(self):
        run = Run()
        self.assertEqual((run.code, run.flaky), (0, []))
        self.assertEqual(run.summary.splitlines(), [
            "100% tests passed, 0 tests failed out of 5", "ctest: exit code 0",
            "===== 5 passed, 1 skipped in 411.07s (0:06:51) =====", "pytest: exit code 0"])

    def test_tests_whose_limit_is_near_are_named_and_the_run_is_green(self):
        run = Run(limit=0.04)
        self.assertEqual(run.code, 0)
        self.assertIn(f"SLOW {CTESTS[0]}: 0 s, and its limit is 0 s: ", run.summary)
        self.assertIn(f"SLOW {PYTESTS[0]}: 181 s, and its limit is 600 s: ", run.summary)
        self.assertEqual(run.summary.count("SLOW "), 2)
        self.assertNotIn(f"SLOW {CTESTS[0]}", Run(limit=0.06).summary)
        self.assertNotIn("SLOW", Run().summary)

    def test_a_test_that_passes_alone_is_flaky_and_the_run_is_green(self):
        run = Run(ctest=(some(CTESTS, 1), ()), pytest=(PYTESTS[2:4], ()))
        self.assertEqual(run.code, 0)
        self.assertEqual(run.flaky, [CTESTS[0], *PYTESTS[2:4]])
        self.assertEqual(run.summary.splitlines(), [
            f"FLAKY {CTESTS[0]}", f"    said by {CTESTS[0]}",
            "100% tests passed, 0 tests failed out of 5", "ctest: exit code 0",
            *(f"FLAKY {name}" for name in PYTESTS[2:4]),
            "===== 5 passed, 1 skipped in 411.07s (0:06:51) =====", "pytest: exit code 0"])

    def test_a_test_of_ctest_that_fails_twice_is_red(self):
        run = Run(ctest=(CTESTS[2:4], CTESTS[2:3]))
        self.assertEqual((run.code, run.flaky), (1, [CTESTS[3]]))
        self.assertIn(f"FAILED {CTESTS[2]}\n    said by {CTESTS[2]}\n", run.summary)
        self.assertIn("80% tests passed, 1 tests failed out of 5\nctest: exit code 8", run.summary)
        self.assertIn("5 passed, 1 skipped", run.summary)

    def test_a_test_of_pytest_that_fails_twice_is_red(self):
        run = Run(pytest=(some(PYTESTS, 2), some(PYTESTS, 1)))
        self.assertEqual((run.code, run.flaky), (1, [PYTESTS[1]]))
        self.assertIn(f"FAILED {PYTESTS[0]}\nFLAKY {PYTESTS[1]}\n"
                      "===== 1 failed, 4 passed, 1 skipped in 411.07s (0:06:51) =====\n"
                      "pytest: exit code 1", run.summary)

    def test_three_flaky_tests_are_green_and_four_are_red_and_count_as_failed(self):
        self.assertEqual(Run(ctest=(some(CTESTS, 3), ())).code, 0)
        self.assertEqual(Run(pytest=(some(PYTESTS, 3), ())).code, 0)
        run = Run(ctest=(some(CTESTS, 2), ()), pytest=(some(PYTESTS, 2), ()))
        self.assertEqual(run.code, 1)
        self.assertEqual(len(run.flaky), 4)
        self.assertIn("60% tests passed, 2 tests failed out of 5", run.summary)
        self.assertIn("2 failed, 3 passed, 1 skipped", run.summary)
        self.assertIn("red: 4 flaky tests, more than 3", run.summary)

    def test_a_program_that_breaks_off_is_red_whatever_it_printed(self):
        for codes, said in (((1, None), "ctest: exit code 1"), ((None, 3), "pytest: exit code 3")):
            run = Run(codes=codes)
            self.assertEqual(run.code, 1)
            self.assertIn(said, run.summary)

    def test_no_second_run_of_a_broken_tree(self):
        many = [f"tests/e2e/test_x.py::test_{i}" for i in range(run_tests.RERUN_MAX + 1)]
        run = Run(pytest=(many, ()), pytests=many)
        self.assertEqual((run.code, run.flaky), (1, []))
        self.assertIn(f"FAILED {many[-1]}\n", run.summary)


class Commands(unittest.TestCase):
    """The calls of ctest and pytest."""

    def test_quick_and_labels_select(self):
        quick = run_tests.Selection(quick=True)
        self.assertIn("^(slow|bench|e2e)$", run_tests.Ctest(quick).command())
        self.assertIn("not slow and not bench and not e2e", run_tests.Pytest(quick).command())
        labelled = run_tests.Selection(label="tidy")
        self.assertEqual([type(s) for s in run_tests.suites_of(labelled)], [run_tests.Ctest])
        self.assertIn("^tidy$", run_tests.Ctest(labelled).command())
        python = run_tests.Selection(label="python")
        self.assertEqual([type(s) for s in run_tests.suites_of(python)], [run_tests.Pytest])

    def test_wrong_flags_end_with_code_2_before_anything_runs(self):
        for wrong in (["--nonsense"], ["--label"]):
            with self.assertRaises(SystemExit) as caught, contextlib.redirect_stderr(io.StringIO()):
                run_tests.parse(wrong)
            self.assertEqual(caught.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
