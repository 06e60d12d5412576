"""Holds docs/howto/where-is-it.md against the tree: its rooms, files and names exist."""

import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import source_text  # noqa: E402  (found only after the line above)

PAGE = "docs/howto/where-is-it.md"
# A file, and the names in brackets after it: `file.cc` (`Class::Method`, a word, `kConstant`).
_FILE = re.compile(r"`([\w./-]+\.(?:h|cc|cu|py|proto|sh|md|txt|yaml))`(?:\s*\(([^)]*)\))?")
_NAME = re.compile(r"`([\w:~]+)`")


def rows_of(text):
    """Yields (line number, rooms, text of the last column) for each row of the page's table."""
    for number, line in enumerate(text.split("\n"), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and "`" in cells[1]:
            yield number, re.findall(r"`([^`]+)`", cells[1]), cells[2]


def _found(name, rooms, files):
    """Returns the files that a name in a row of these rooms may mean."""
    if name in files:
        return [name]
    return [path for path in files if path.endswith("/" + name)
            and any(path.startswith(room + "/") for room in rooms)]


def wrong_rows(root):
    """Returns [(line, what is wrong)] of the page under root."""
    files = [str(path) for path in source_text.list_files(root)]
    folders = {str(parent) for path in files for parent in pathlib.PurePosixPath(path).parents}
    wrong = []
    for line, rooms, open_first in rows_of((root / PAGE).read_text(encoding="utf-8")):
        wrong += [(line, f"no folder {room}") for room in rooms if room not in folders]
        for name, brackets in _FILE.findall(open_first):
            paths = _found(name, rooms, files)
            if not paths:
                wrong.append((line, f"no {name} in {', '.join(rooms)}"))
            text = "".join((root / path).read_text(encoding="utf-8") for path in paths)
            for symbol in _NAME.findall(brackets):
                last = symbol.split("::")[-1]
                if paths and not re.search(rf"\b{re.escape(last)}\b", text):
                    wrong.append((line, f"no {symbol} in {name}"))
    return wrong


class WhereIsIt(unittest.TestCase):
    """The page, and the test itself on a page with mistakes."""

    def test_every_room_file_and_name_of_the_page_exists(self):
        self.assertEqual(wrong_rows(ROOT), [])

    def test_mistakes_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in (
                    ("server/a/one.cc", "void Step();\n"), ("server/b/two.cc", "int kTwo;\n"),
                    (PAGE, "| Change | Room | Open first |\n|---|---|---|\n"
                           "| fine | `server/a`, `server/b` | `one.cc` (`One::Step`), `two.cc` |\n"
                           "| a room | `server/c` | text |\n"
                           "| another room's file | `server/a` | `two.cc` |\n"
                           "| a name | `server/a` | `one.cc` (`Stop`) |\n")):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text, encoding="utf-8")
            self.assertEqual(wrong_rows(root), [
                (4, "no folder server/c"), (5, "no two.cc in server/a"),
                (6, "no Stop in one.cc")])


if __name__ == "__main__":
    unittest.main()
