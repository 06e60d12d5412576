"""Every link between the pages of this repository leads to a file, and to a heading in it.

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

    def test_links_in_code_do_not_count(self):
        self.assertEqual(links_of("`[a](b)`\n```\n[c](d)\n```\n[e](f.md#g) [h](https://i)"),
                         ["f.md#g"])

    def test_headings_become_anchors(self):
        text = "# 1. The `sum`, always\n## [A link](x.md) too\n```\n# a comment\n```\n"
        self.assertEqual(anchors_of(text), {"1-the-sum-always", "a-link-too"})


if __name__ == "__main__":
    unittest.main()
