"""Holds docs/howto/where-is-it.md against the tree: its rooms, files and names exist, each name of
a file means one file, and every room of a row holds one of the row's files."""

import fnmatch
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import source_text  # noqa: E402  (found only after the line above)

PAGE = "docs/howto/where-is-it.md"
# A file, a pattern or a folder, and the names in brackets after it:
# `file.cc` (`Class::Method`, a word, `kConstant`), `*_commands.cc`, `table/`.
_FILE = re.compile(r"`([\w./*-]+(?:\.(?:h|cc|cu|py|proto|sh|md|txt|yaml)|/))`(?:\s*\(([^)]*)\))?")
_NAME = re.compile(r"`([\w:~]+)`")


def rows_of(text):
    """Yields (line number, rooms, text of the last column) for each row of the page's table."""
    for number, line in enumerate(text.split("\n"), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and "`" in cells[1]:
            yield number, re.findall(r"`([^`]+)`", cells[1]), cells[2]


def _found(name, rooms, files):
    """Returns the files that a name in a row of these rooms means: a path from the root, or one
    from a room; where no room has it, one of that name deeper in a room. All files of a folder."""
    if name in files:
        return [name]
    if name.endswith("/"):
        return [path for path in files if any(path.startswith(f"{room}/{name}") for room in rooms)]
    in_rooms = [path for path in files for room in rooms if path == f"{room}/{name}"]
    return in_rooms or [path for path in files if fnmatch.fnmatchcase(path, "*/" + name)
                        and any(path.startswith(room + "/") for room in rooms)]


def _wrong_name(name, brackets, rooms, paths, texts):
    """Yields why a name with the text in brackets after it is wrong; paths: the files it means."""
    if not paths:
        yield f"no {name} in {', '.join(rooms)}"
    elif len(paths) > 1 and "*" not in name and not name.endswith("/"):
        yield f"{name} is {' and '.join(paths)}: write more of its path"
    for symbol in _NAME.findall(brackets) if paths else ():
        if not all(re.search(rf"\b{re.escape(part)}\b", texts) for part in symbol.split("::")):
            yield f"no {symbol} in {name}"


def wrong_rows(root):
    """Returns [(line, mistake)] of the page under root."""
    files = [str(path) for path in source_text.list_files(root)]
    folders = {str(parent) for path in files for parent in pathlib.PurePosixPath(path).parents}
    wrong = []
    for line, rooms, open_first in rows_of((root / PAGE).read_text(encoding="utf-8")):
        wrong += [(line, f"no folder {room}") for room in rooms if room not in folders]
        named = set()
        for name, brackets in _FILE.findall(open_first):
            paths = _found(name, rooms, files)
            named.update(paths)
            texts = "".join((root / path).read_text(encoding="utf-8") for path in paths)
            wrong += [(line, why) for why in _wrong_name(name, brackets, rooms, paths, texts)]
        wrong += [(line, f"no file of {room}") for room in rooms
                  if named and not any(path.startswith(room + "/") for path in named)]
    return wrong


class WhereIsIt(unittest.TestCase):
    """The page, and the test itself on a page with mistakes."""

    def test_every_room_file_and_name_of_the_page_exists(self):
        self.assertEqual(wrong_rows(ROOT), [])

    def test_mistakes_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in (
                    ("server/a/one.cc", "struct One { void Step(); };\n"),
                    ("server/a/deep/two.cc", "int kOne;\n"), ("server/b/two.cc", "int kTwo;\n"),
                    ("server/b/part/three.cc", ""), ("server/b/rest/three.cc", ""),
                    (PAGE, "| Change | Room | Open first |\n|---|---|---|\n"
                           "| fine | `server/a`, `server/b` | `one.cc` (`One::Step`), `two.cc` |\n"
                           "| fine | `server/b` | `part/three.cc`, `t*.cc` (`kTwo`), `rest/` |\n"
                           "| a room | `server/c` | text |\n"
                           "| another room's file | `server/b` | `one.cc` |\n"
                           "| a name | `server/a` | `one.cc` (`Stop`, `Two::Step`) |\n"
                           "| two files | `server/b` | `three.cc` |\n"
                           "| a room too many | `server/a`, `server/b` | `one.cc` |\n"
                           "| a folder | `server/b` | `two.cc`, `all/` |\n")):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text, encoding="utf-8")
            self.assertEqual(wrong_rows(root), [
                (5, "no folder server/c"), (6, "no one.cc in server/b"),
                (7, "no Stop in one.cc"), (7, "no Two::Step in one.cc"),
                (8, "three.cc is server/b/part/three.cc and server/b/rest/three.cc: write more of"
                    " its path"),
                (9, "no file of server/b"), (10, "no all/ in server/b")])


if __name__ == "__main__":
    unittest.main()
