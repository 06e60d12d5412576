"""README.zh.md has the structure, the commands and the measured numbers of README.md.

Comes from: the two pages. Goes to: `ctest -L tidy` (tidy_selftest). The words of status tables may
lag behind; what a reader types and cites may not. Thread safety: one process, nothing shared.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks_of(text):
    """Returns (language, lines) of each code block, without comments and trailing blanks."""
    return [
        (language, [re.sub(r"\s+# .*|^# .*", "", line).rstrip() for line in body.splitlines()])
        for language, body in FENCED.findall(text)
    ]


def headings_of(text):
    """Returns the level of each heading."""
    return [len(marks) for marks in re.findall(r"^(#+) ", FENCED.sub("", text), re.MULTILINE)]


def commands_of(text):
    """Returns what stands in code and has a blank, as commands do, outside of blocks."""
    spans = re.findall(r"`([^`]*)`", FENCED.sub("", text))
    return sorted(" ".join(span.split()) for span in spans if " " in span)


def medians_of(text):
    """Returns (median, command) of each row of the table of numbers."""
    return re.findall(r"^\|[^|]*\| ([\d.]+(?: s)?) \|[^|]*\| (`[^`]*`) \|$", text, re.MULTILINE)


class TranslationTest(unittest.TestCase):
    def setUp(self):
        self.english, self.chinese = (
            (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")
        )

    def test_headings_and_code_blocks_are_the_same(self):
        self.assertEqual(headings_of(self.chinese), headings_of(self.english))
        self.assertGreater(len(blocks_of(self.english)), 3)
        self.assertEqual(blocks_of(self.chinese), blocks_of(self.english))

    def test_commands_in_the_text_are_the_same(self):
        self.assertIn("kill -9", commands_of(self.english))
        self.assertEqual(commands_of(self.chinese), commands_of(self.english))

    def test_numbers_are_the_same(self):
        self.assertGreater(len(medians_of(self.english)), 5)
        self.assertEqual(medians_of(self.chinese), medians_of(self.english))

    def test_a_changed_command_is_found(self):
        changed = self.chinese.replace("--servers 2 --nproc 2 train.py", "--servers 3 train.py")
        self.assertNotEqual(blocks_of(changed), blocks_of(self.english))


if __name__ == "__main__":
    unittest.main()
