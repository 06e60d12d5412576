"""Every link between the pages of this repository leads to a file, and to a heading in it; every
source file that a page names exists.

Comes from: all Markdown files of the working tree. Goes to: `ctest -L tidy` (tidy_selftest).
Thread safety: one process, nothing shared.
"""

import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import source_text  # noqa: E402  (found only after the line above)

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# A file of ours in code: `round_fsm.cc`, `server/round/round_fsm.{h,cc}`.
SOURCE = re.compile(r"`([\w./-]*\w)(?:\.(h|cc|py|sh|proto)|\.\{(\w+),(\w+)\})`")


def links_of(text):
    """Returns the targets of a page's links; a link in code does not count."""
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", text))
    return [target for target in LINK.findall(text) if "://" not in target]


def anchors_of(text):
    """Returns the names that links use for a page's headings."""
    anchors = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCED.sub("", text), re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchors.add(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-"))
    return anchors


def broken_links(root):
    """Returns "page: target" for every link of a page under root that leads nowhere."""
    root = pathlib.Path(root)
    broken = []
    for page in source_text.list_files(root):
        if page.suffix != ".md":
            continue
        for target in links_of((root / page).read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            path = (root / page).parent / name if name else root / page
            if not path.exists():
                broken.append(f"{page}: {target}")
            elif anchor and anchor not in anchors_of(path.read_text(encoding="utf-8")):
                broken.append(f"{page}: {target}")
    return broken


def lost_sources(root):
    """Returns "page: file" for every missing source file that a page under root names.

    A page may leave out the folders in front of the name.
    """
    root = pathlib.Path(root)
    files = source_text.list_files(root)
    known = {"/".join(path.parts[i:]) for path in files for i in range(len(path.parts))}
    lost = []
    for page in files:
        if page.suffix != ".md":
            continue
        text = FENCED.sub("", (root / page).read_text(encoding="utf-8"))
        for stem, *suffixes in SOURCE.findall(text):
            names = [f"{stem.removeprefix('./')}.{suffix}" for suffix in suffixes if suffix]
            lost += [f"{page}: {name}" for name in names if name not in known]
    return lost


class Links(unittest.TestCase):
    """Links between pages."""

    def test_every_link_leads_somewhere(self):
        self.assertEqual(broken_links(ROOT), [])

    def test_a_missing_file_and_a_missing_heading_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            root.joinpath("a.md").write_text("# One\n[x](b.md) [x](b.md#two) [x](#one) [x](c.md)\n")
            root.joinpath("b.md").write_text("# Three\n[x](a.md#one)\n")
            self.assertEqual(broken_links(root), ["a.md: b.md#two", "a.md: c.md"])

    def test_every_named_source_file_is_there(self):
        self.assertEqual(lost_sources(ROOT), [])

    def test_a_lost_source_file_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            root.joinpath("x").mkdir()
            root.joinpath("x/a.cc").write_text("")
            root.joinpath("p.md").write_text("`a.cc` `x/a.cc` `a.{h,cc}` `y/a.cc` `b.py`\n")
            self.assertEqual(lost_sources(root), ["p.md: a.h", "p.md: y/a.cc", "p.md: b.py"])

    def test_links_in_code_do_not_count(self):
        self.assertEqual(links_of("`[a](b)`\n```\n[c](d)\n```\n[e](f.md#g) [h](https://i)"),
                         ["f.md#g"])

    def test_headings_become_anchors(self):
        text = "# 1. The `sum`, always\n## [A link](x.md) too\n```\n# a comment\n```\n"
        self.assertEqual(anchors_of(text), {"1-the-sum-always", "a-link-too"})


if __name__ == "__main__":
    unittest.main()
