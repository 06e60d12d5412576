"""Tests of tools/thread_safety.py: which files are read, and that a broken promise is found."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import thread_safety  # noqa: E402  (found only after the line above)

HEADER = """#include "common/base/sync.h"
class Count {
 public:
  int Read();
  int Peek();
  ballast::Mutex mu_;
  int n_ ABSL_GUARDED_BY(mu_) = 0;
};
"""
GOOD = '#include "server/a/count.h"\nint Count::Read() { ballast::MutexLock l(&mu_); return n_; }\n'
BAD = '#include "server/a/count.h"\nint Count::Peek() { return n_; }\n'


class ThreadSafety(unittest.TestCase):
    """A tree of three files."""

    def run_on(self, files):
        """Returns (files read, Clang's output) for {path: text}, with this tree's sync.h."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text, encoding="utf-8")
            names = thread_safety.locking_files(root)
            return names, thread_safety.check(root, names, ["-I", str(ROOT)])

    def test_files_that_lock_or_touch_guarded_data_are_read(self):
        names, output = self.run_on({
            "server/a/count.h": HEADER, "server/a/count.cc": GOOD,
            "server/b/other.cc": "int x;\n", "tests/a_test.cc": BAD})
        self.assertEqual((names, output), (["server/a/count.cc"], ""))

    def test_guarded_data_without_its_lock_is_found(self):
        names, output = self.run_on({
            "server/a/count.h": HEADER, "server/a/count.cc": GOOD, "server/a/peek.cc": BAD})
        self.assertEqual(names, ["server/a/count.cc", "server/a/peek.cc"])
        self.assertIn("peek.cc:2", output)
        self.assertNotIn("count.cc:2", output)

    def test_include_folders_are_taken_once(self):
        entry = {"command": "c++ -I/a -isystem /b -O2 -I/a -c x.cc"}
        self.assertEqual(thread_safety.include_flags([entry, entry]), ["-I/a", "-isystem", "/b"])


if __name__ == "__main__":
    unittest.main()
