"""Tests of scripts/setup.sh: its report of a step under way, and the parts only for tests.

Comes from: scripts/setup.sh, without its last line. Goes to: `ctest -L tidy` (tidy_selftest).
Thread safety: one process, nothing shared.
"""

import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETUP = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8")


def shell(commands):
    """Runs commands where setup.sh's functions are known; returns (exit code, stdout, stderr)."""
    functions = SETUP.replace('cd "$(dirname "${BASH_SOURCE[0]}")/.."', f'cd "{ROOT}"', 1)
    functions = functions.removesuffix('main "$@"\n')
    done = subprocess.run(["bash", "-c", functions + commands], capture_output=True, text=True,
                          check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def progress(log, passed_s, usual_s):
    """Returns the report of a step that began `passed_s` ago and has written `log`."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(log)
        file.flush()
        return shell(f"SECONDS=1000; progress_of {file.name} {1000 - passed_s} {usual_s}")[1]


class Progress(unittest.TestCase):
    """Lines of a step that takes long."""

    def test_steps_of_ninja_say_how_long_it_will_take(self):
        log = "[1/300] a\n[99/300] b\n[100/300] Building CXX object a.cc.o\n"
        self.assertEqual(progress(log, 60, 10), "60 s, 100 of 300 steps, about 2 min left\n")
        self.assertEqual(progress("[299/300] x\n", 300, 10),
                         "300 s, 299 of 300 steps, less than a minute left\n")

    def test_other_steps_go_by_their_usual_time(self):
        self.assertEqual(progress("Unpacking a\n", 20, 140),
                         "20 s, about 2 min left: Unpacking a\n")
        self.assertEqual(progress("Unpacking b\n", 90, 60), "90 s: Unpacking b\n")
        self.assertEqual(progress("", 20, 30), "20 s, less than a minute left: \n")

    def test_a_step_that_fails_ends_everything_with_the_end_of_its_log(self):
        with tempfile.TemporaryDirectory() as folder:
            code, out, err = shell(
                f'cd {folder}; mkdir -p "$LOGS"; run_logged demo 5 bash -c "echo words; exit 3"; '
                "echo not reached")
        self.assertEqual((code, out), (3, ""))
        self.assertIn("words", err)


class Purposes(unittest.TestCase):
    """--for run takes nothing that only tests need."""

    def test_a_wrong_purpose_is_refused(self):
        code, _, err = shell("main --for walking")
        self.assertEqual(code, 1)
        self.assertIn("--for needs 'run' or 'test'", err)

    def test_what_only_tests_need_is_not_for_a_run(self):
        run, test = (set(re.search(rf"readonly {name}=\(([^)]*)\)", SETUP)[1].split())
                     for name in ("PACKAGES", "TEST_PACKAGES"))
        self.assertFalse(run & test)
        self.assertLessEqual({"chromium", "zsh", "fish", "lintian", "libgtest-dev"}, test)
        python = (ROOT / "requirements.txt").read_text(encoding="utf-8")
        names = re.findall(r"^([\w.-]+)==", python, re.MULTILINE)
        self.assertEqual(sorted(names),
                         ["matplotlib", "nanobind", "numpy", "scikit-build-core", "torch"])

    def test_the_scripts_say_what_they_are_for(self):
        for script, purpose in (("quickstart.sh", "run"), ("test.sh", "test")):
            text = (ROOT / "scripts" / script).read_text(encoding="utf-8")
            self.assertIn(f"./scripts/setup.sh --for {purpose}", text)


if __name__ == "__main__":
    unittest.main()
