"""Tests of tools/commit_subject.py and of the hook that runs it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import commit_subject  # noqa: E402  (found only after the line above)

ROOMS = {"round", "server/round", "docs"}


class Subjects(unittest.TestCase):
    """Which messages pass."""

    def test_a_room_and_a_short_text_pass(self):
        for message in ("round: refuse a second frame\n", "server/round, docs: name the phases\n",
                        "docs: x\n\nA body.\n", "docs: x\n# Please enter the message\n",
                        "docs: " + "é" * 84 + "\n"):
            with self.subTest(message=message):
                self.assertEqual(commit_subject.check(message, ROOMS), [])

    def test_subjects_of_git_itself_pass(self):
        for subject in ("Merge branch 'a'", 'Revert "x"', "fixup! " + "x" * 100, "squash! x"):
            with self.subTest(subject=subject):
                self.assertEqual(commit_subject.check(subject + "\n", ROOMS), [])

    def test_what_breaks_a_rule_is_named(self):
        for message, word in (("Refuse a second frame\n", "room"), ("\n", "room"), ("", "room"),
                              ("round:x\n", "room"), ("kitchen: cook\n", "kitchen"),
                              ("round, kitchen: cook\n", "kitchen"),
                              ("docs: " + "x" * 85 + "\n", "91 characters"),
                              ("docs: x\nbody\n", "blank line")):
            with self.subTest(message=message):
                found = commit_subject.check(message, ROOMS)
                self.assertEqual(len(found), 1)
                self.assertIn(word, found[0])

    def test_rooms_are_the_folders_of_the_tree(self):
        paths = [pathlib.PurePosixPath(p) for p in ("server/round/a.h", "README.md", ".ci/x")]
        self.assertEqual(commit_subject.rooms_of(paths), {"server", "round", "server/round", "ci"})


class Hook(unittest.TestCase):
    """The script that git runs."""

    def test_the_hook_ends_with_the_verdict(self):
        with tempfile.TemporaryDirectory() as folder:
            for subject, code in (("tools: check subjects\n", 0), ("Check subjects\n", 1)):
                message = pathlib.Path(folder, "message")
                message.write_text(subject)
                run = subprocess.run([sys.executable, "-B", ROOT / "tools/commit_subject.py",
                                      message], capture_output=True, text=True, check=False)
                self.assertEqual((run.returncode, bool(run.stderr)), (code, bool(code)))


if __name__ == "__main__":
    unittest.main()
