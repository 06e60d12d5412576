"""Fuzz target: the reader of ds_config.json takes any bytes.

Comes from: test_ds_fuzz.py, and by hand `python tests/fuzz/ds_config_fuzz.py`, with libFuzzer's
options and folders. Goes to: ballast.ds_config under Atheris, which finds inputs by the lines that
they reach. Any bytes give a report, or a DsConfigError whose line and column are inside the text;
each finding's place is that of a name; no other exception, and no input that takes 10 s.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "fuzz")]

import corpus  # noqa: E402  (found only after the line above)

with atheris.instrument_imports(include=["ballast.ds_config"]):
    from ballast.ds_config import DsConfigError, check
    from ballast.ds_config.table import ALIASES, OPTIMIZERS, ROWS, SCHEDULERS, SECTIONS

CORPORA = (ROOT / "configs" / "ds",)
TIMEOUT_S = 10
TEXT_BYTES_MAX = 8192
_PLACE = re.compile(r"([0-9]+):([0-9]+)\Z")


def words() -> list[str]:
    """The elements of configurations: names, types, and marks of the syntax."""
    variants = (*OPTIMIZERS, *SCHEDULERS)
    paths = [row.path for rows in (ROWS, *(v.rows for v in variants)) for row in rows]
    names = {name for path in (*paths, *(a.old for a in ALIASES), *SECTIONS)
             for name in path.split(".")}  # fmt: skip
    names |= {v.name for v in variants} | {"auto", "cpu", "nvme"}
    signs = ["true", "false", "null", "5e8", "1e999", "-0.0", "0.5", "9" * 30,
             "/*", "*/", "//", "#", "{", "}", "[", "]", ":", ","]  # fmt: skip
    return [f'\\"{name}\\"' for name in sorted(names)] + signs


class Target:
    """One reader, over and over; the file is its input."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, data: bytes) -> None:
        self._file.write_bytes(data)
        try:
            report = check(self._file, 4)
        except DsConfigError as error:
            assert error.message.startswith(f"{self._file}:{error.line}:{error.column}: ")
            assert_inside(data, error.line, error.column)
            return
        assert report.as_text().isascii()
        report.as_json()
        text = data.decode("utf-8-sig").split("\n")
        for finding in report.findings:
            if finding.place:
                place = _PLACE.search(finding.place)
                assert place is not None, finding
                line, column = map(int, place.groups())
                assert text[line - 1][column - 1] == '"', finding


def assert_inside(data: bytes, line: int, column: int) -> None:
    """A place is a character of the text, or its end; a byte, in a text other than UTF-8."""
    try:
        lines: list[str] | list[bytes] = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        lines = data.split(b"\n")
    assert 1 <= line <= len(lines), (line, len(lines))
    assert 1 <= column <= len(lines[line - 1]) + 1, (line, column)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dictionary = Path(folder, "words.dict")
        dictionary.write_text("".join(f'"{word}"\n' for word in words()))
        found = Path(folder, "found")  # The first folder gets the inputs that reach more lines.
        found.mkdir()
        options = [f"-dict={dictionary}", f"-max_len={TEXT_BYTES_MAX}", f"-timeout={TIMEOUT_S}"]
        given = sys.argv[1:]
        mine = any(not word.startswith("-") for word in given)
        kept = Path(folder, "kept")
        corpus.unpack("ds_config", kept)
        folders = [] if mine else [str(found), *map(str, CORPORA), str(kept)]
        atheris.Setup([sys.argv[0], *options, *given, *folders], Target(Path(folder, "input.json")))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
