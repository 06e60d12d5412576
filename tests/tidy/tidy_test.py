"""Tests of tools/tidy.py: each rule finds a planted violation at its line, good code passes."""

import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import source_text  # noqa: E402  (found only after the line above)
import tidy  # noqa: E402

HEADER = "// The purpose of this file.\n"
GOOD_HEADER = HEADER + "#pragma once\n"


def style(files):
    """Returns [(path, line, message)] for a temporary tree of {path: text}."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return [(str(p), line, message) for p, line, message in tidy.check_style(folder)]


def places(files):
    """Returns [(path, line)] of all violations in a temporary tree."""
    return [(path, line) for path, line, _ in style(files)]


class Lines(unittest.TestCase):
    """Layout of lines and files."""

    def test_long_lines_tabs_and_trailing_blanks_are_reported(self):
        text = GOOD_HEADER + "// " + "a b " * 25 + "end\n\tint a;\nint b; \n"
        self.assertEqual(places({"a.h": text}), [("a.h", 3), ("a.h", 4), ("a.h", 5)])

    def test_a_line_of_exactly_the_limit_passes_and_columns_are_characters(self):
        self.assertEqual(places({"a.h": GOOD_HEADER + "// " + "é" * 97 + "\n"}), [])

    def test_links_and_unbreakable_lines_pass(self):
        link = "// https://example.org/" + "x" * 100 + " x\n"
        self.assertEqual(places({"a.h": GOOD_HEADER + link + "x" * 150 + "\n"}), [])

    def test_a_missing_final_newline_and_a_carriage_return_are_reported(self):
        self.assertEqual(places({"a.h": GOOD_HEADER + "int a;"}), [("a.h", 3)])
        self.assertEqual(places({"a.md": "a\r\n"}), [("a.md", 1)])

    def test_inputs_of_fuzzing_are_as_they_are(self):
        self.assertEqual(places({"tests/fuzz/corpus/x/a.h": "\t \n int a;"}), [])
        self.assertNotEqual(places({"tests/fuzz/a.h": "\t \n int a;"}), [])

    def test_binary_files_are_skipped(self):
        self.assertEqual(places({"a.bin": b"\x00\t \n", "b.h": b"\xff\xfe"}), [])


class Headers(unittest.TestCase):
    """The first comment and the include guard."""

    def test_a_header_needs_a_comment_and_a_guard(self):
        self.assertEqual(places({"a.h": "#include <x>\n"}), [("a.h", 1), ("a.h", 1)])

    def test_scripts_need_a_comment_after_the_interpreter_line(self):
        self.assertEqual(places({"a.sh": "#!/bin/sh\nset -e\n"}), [("a.sh", 1)])
        self.assertEqual(places({"a.sh": "#!/bin/sh\n# Why.\nset -e\n"}), [])
        self.assertEqual(places({"a.py": "import sys\n"}), [("a.py", 1)])

    def test_a_source_file_may_leave_the_comment_to_its_header(self):
        build = {"CMakeLists.txt": "add_library(a a.cc)\n", "a.cc": '#include "a.h"\n'}
        self.assertEqual(places(build), [("a.cc", 1)])
        self.assertEqual(places({**build, "a.h": GOOD_HEADER}), [])


class Words(unittest.TestCase):
    """Banned words, each where its list applies."""

    def test_unfinished_work_is_reported_everywhere(self):
        for word in ("TO" "DO: x", "FIX" "ME", "X" "XX", "HA" "CK", "Place" "holder"):
            with self.subTest(word=word):
                self.assertEqual(places({"a.h": GOOD_HEADER + f"// {word}\n"}), [("a.h", 3)])
                self.assertEqual(places({"a.md": f"{word}\n"}), [("a.md", 1)])
        self.assertEqual(places({"a.h": GOOD_HEADER + "// TODO(#12): x; mkstemp XXXXXX\n"}), [])

    def test_generated_stubs_pass_in_code_but_not_in_comments(self):
        self.assertEqual(places({"a.h": GOOD_HEADER + "// only a st" "ub\n"}), [("a.h", 3)])
        self.assertEqual(places({"a.h": GOOD_HEADER + "auto stub = Data::NewStub(c);\n"}), [])

    def test_paths_of_one_machine_and_registry_hosts_are_reported(self):
        for word in ("/wo" "rk/x", "/ro" "ot/x", "/tmp/ba" "sh_jobs", "/ho" "me/me/x",
                     "py" "pi.org", "../sha" "red/x"):
            with self.subTest(word=word):
                self.assertEqual(places({"a.json": f'"{word}"\n'}), [("a.json", 1)])
        self.assertEqual(places({"a.md": "src/work/x network/root/x https://a/work/\n"}), [])

    def test_threads_and_the_packaged_mutex_are_reported_in_code_only(self):
        text = GOOD_HEADER + "// absl::Mutex, std::thread\nabsl::Mutex m;\nstd::thread t;\n"
        self.assertEqual(places({"a.h": text}), [("a.h", 4), ("a.h", 5)])
        thread = GOOD_HEADER + "std::thread t;\n"
        allowed = "common/threads/thread_executor.h"
        self.assertEqual(places({allowed: thread, "tests/a.h": thread}), [])

    def test_code_that_executes_what_it_reads_is_reported(self):
        self.assertEqual(places({"a.py": "# Why.\npick" "le.load(f)\n"}), [("a.py", 2)])

    def test_fast_math_is_reported_in_build_files_only(self):
        self.assertEqual(places({"CMakeLists.txt": "x(-ffa" "st-math)\n"}), [("CMakeLists.txt", 1)])
        self.assertEqual(places({"a.md": "-ffa" "st-math is banned\n"}), [])

    def test_words_that_hide_the_subject_are_reported_in_shipped_comments(self):
        text = GOOD_HEADER + "// Nobody waits, and it\n// may go on.\nint who;  // `who` asks\n"
        self.assertEqual(places({"server/a.h": text}), [("server/a.h", 3), ("server/a.h", 4)])
        self.assertEqual(places({"tests/a.h": text, "a.h": text}), [])
        python = '"""Says\nwho waits."""\n# So long.\nwho = "somebody"\n'
        self.assertEqual(places({"client/a.py": python}), [("client/a.py", 2), ("client/a.py", 3)])
        proto = "// A home.\n// When the home is told.\n"
        self.assertEqual(places({"proto/a.proto": proto}), [("proto/a.proto", 2)])


class Python(unittest.TestCase):
    """Python files."""

    def test_a_file_that_is_not_valid_python_is_reported(self):
        self.assertEqual(places({"a.py": "# Why.\ndef f(:\n"}), [("a.py", 2)])


class Limits(unittest.TestCase):
    """The list of subjects over the limits."""

    def test_needless_rows_are_reported_and_removed(self):
        with tempfile.TemporaryDirectory() as folder:
            rows = pathlib.Path(folder, tidy.limits.LIST)
            rows.parent.mkdir()
            rows.write_text("# Why.\nclass A 50 1 0\nno row\n")
            self.assertEqual([n for _, n, _ in tidy.check_style(folder)], [2, 3])
            self.assertEqual([n for _, n, _ in tidy.check_style(folder, fix=True)], [3])
            self.assertEqual(rows.read_text(), "# Why.\nno row\n")


class Built(unittest.TestCase):
    """Files that nothing compiles."""

    def test_a_source_file_must_be_named_in_a_build_file(self):
        source = {"a/b/c.cc": HEADER}
        self.assertEqual(places(source), [("a/b/c.cc", 1)])
        self.assertEqual(places({**source, "a/b/CMakeLists.txt": "x(c.cc)\n"}), [])
        self.assertEqual(places({**source, "a/CMakeLists.txt": "x(b/c.cc)\n"}), [])
        commented = {**source, "a/b/CMakeLists.txt": "# x(c.cc)\n"}
        self.assertEqual(places(commented), [("a/b/c.cc", 1)])


class Format(unittest.TestCase):
    """The clang-format run."""

    def test_misformatted_code_is_reported_and_fixed(self):
        if not shutil.which(tidy.CLANG_FORMAT):
            self.skipTest(f"{tidy.CLANG_FORMAT} is not installed")
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / ".clang-format").write_text("BasedOnStyle: Google\n")
            (root / "a.h").write_text("int  a;\n")
            self.assertEqual([(str(p), n) for p, n, _ in tidy.check_format(root)], [("a.h", 1)])
            self.assertEqual(tidy.check_format(root, fix=True), [])
            self.assertEqual(tidy.check_format(root), [])


class SplitCpp(unittest.TestCase):
    """The lexer under all checks."""

    def test_code_and_comments_keep_every_line_in_place(self):
        text = 'int a; // one\n/* two\n */ char c = \'"\'; const char* s = "// no";\n'
        code, comments = source_text.split_cpp(text)
        self.assertEqual((len(code), len(comments)), (len(text), len(text)))
        self.assertEqual(code.count("\n"), 3)
        self.assertNotIn("no", code + comments)
        self.assertIn("one", comments)
        self.assertIn("char c", code)


if __name__ == "__main__":
    unittest.main()
