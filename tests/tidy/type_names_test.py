"""Tests of tools/type_names.py: one word of the page, one type; one name, one type."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import type_names  # noqa: E402  (found only after the line above)

PAGE = ("# A\n\n## Words\n\n| Word | Meaning | Where |\n|---|---|---|\n"
        "| extent | a piece | `Extent` |\n| contributor set | slots | `common/sets.h` |\n"
        "| turn | a number | `Layout::Turn` |\n\n## Rooms\n\n| step | in no table | here |\n")


def places(files, page=PAGE):
    """Returns [(path, line)] of all that the check finds in a tree of {path: text} and the page."""
    texts = {pathlib.PurePosixPath(path): text for path, text in files.items()}
    found = []
    type_names.check({**texts, type_names.PAGE: page}, found)
    return sorted((str(path), line) for path, line, _ in found)


class Words(unittest.TestCase):
    """Types with the name of a word."""

    def test_the_type_or_the_file_that_the_row_names_may_have_the_name(self):
        self.assertEqual(places({"common/a.h": "struct Extent {\n};\n",
                                 "common/sets.h": "class ContributorSet {\n};\n",
                                 "server/a.cc": "enum class Step { kA };\n"}), [])

    def test_a_second_type_is_refused_also_inside_a_class(self):
        self.assertEqual(places({"common/a.h": "struct Extent {\n};\n",
                                 "server/b.h": "class B {\n  struct Extent {\n  };\n};\n"}),
                         [("common/a.h", 1), ("server/b.h", 2)])

    def test_a_type_that_its_row_does_not_name_is_refused(self):
        self.assertEqual(places({"server/a.h": "class A {\n  enum class Turn { kA };\n};\n",
                                 "server/sets.h": "struct ContributorSet {\n};\n"}),
                         [("server/a.h", 2), ("server/sets.h", 1)])

    def test_tests_and_declarations_may_have_any_name(self):
        self.assertEqual(places({"common/a.h": "struct Extent {\n};\nclass Turn;\n",
                                 "tests/a.h": "struct Extent {\n};\n"}), [])


class Names(unittest.TestCase):
    """Types of one name."""

    def test_two_types_outside_classes_have_different_names(self):
        for text in ("class A {\n};\n", "namespace n {\nstruct A : B {\n};\n}\n",
                     "namespace {\nenum class A : int { kA };\n}\n"):
            found = places({"common/a.h": "struct A {\n};\n", "server/b.cc": text})
            self.assertEqual([path for path, _ in found], ["common/a.h", "server/b.cc"], text)

    def test_members_and_definitions_outside_their_class_may_share_a_name(self):
        self.assertEqual(places({
            "common/a.h": "class A {\n  struct Parts {\n  };\n  struct State;\n};\n",
            "common/a.cc": "struct A::State {\n};\n",
            "server/b.h": "class B {\n  struct Parts {\n  };\n};\nstruct State {\n};\n"}), [])

    def test_a_name_with_a_reason_may_be_shared(self):
        text = "struct KernelTable {\n};\n"
        self.assertEqual(places({"common/a.h": text, "server/b.h": text}), [])


if __name__ == "__main__":
    unittest.main()
