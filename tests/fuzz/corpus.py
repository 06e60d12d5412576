#!/usr/bin/env python3
"""The inputs that fuzzing keeps: tests/fuzz/corpus/<target>.txt, one line for each input.

A line is the input's name, a blank, and its bytes: printable ASCII as it is, a newline as \\n, a
backslash as \\\\, any other byte as \\ and three octal digits. Lines are sorted by name: the same
inputs give the same file, and a new input is one more line of a diff.

  corpus.py unpack TARGET FOLDER   writes each input into a file of its own
  corpus.py add TARGET FOLDER      takes the files of FOLDER in; one of a known name replaces it

Comes from: fuzz.sh, fuzz_test.cmake, make_corpus.py, ds_config_fuzz.py, and people. Goes to: the
files next to it; corpus.cc reads them, too. Thread safety: one process, nothing shared.
"""

import pathlib
import re
import sys

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
_NAME = re.compile(r"[\w.-]+\Z", re.ASCII)
_ESCAPE = re.compile(rb"\\(n|\\|[0-3][0-7]{2})")
_PLAIN = {**{chr(c): chr(c) for c in range(32, 127)}, "\n": "\\n", "\\": "\\\\"}


def line_of(name, data):
    """An input as its line. ValueError for a name that is none."""
    if not _NAME.match(name):
        raise ValueError(f"{name!r}: a name has letters, digits, '.', '_' and '-' only")
    text = "".join(_PLAIN.get(c) or f"\\{ord(c):03o}" for c in data.decode("latin-1"))
    # Blanks at the end of a line would be invisible.
    shown = text.rstrip(" ")
    return f"{name} " + shown + r"\040" * (len(text) - len(shown)) + "\n"


def input_of(line):
    """(name, bytes) of a line. ValueError for anything that line_of does not write."""
    name, _, text = line.rstrip("\n").partition(" ")

    def byte(found):
        escape = found[1]
        return {b"n": b"\n", b"\\": b"\\"}.get(escape) or bytes([int(escape, 8)])

    data = _ESCAPE.sub(byte, text.encode("latin-1"))
    if line_of(name, data) != line:
        raise ValueError(f"{name}: its line is not as corpus.py writes it")
    return name, data


def path_of(target):
    return CORPUS / f"{target}.txt"


def read(target):
    """Bytes by name; none where the target has no file."""
    path = path_of(target)
    lines = path.read_text(encoding="ascii").splitlines(keepends=True) if path.exists() else []
    return dict(map(input_of, lines))


def write(target, inputs):
    """Makes the file of the target; `inputs` are bytes by name."""
    path_of(target).write_text(
        "".join(line_of(name, inputs[name]) for name in sorted(inputs)), encoding="ascii")


def unpack(target, folder):
    """Writes the target's inputs into `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in read(target).items():
        (folder / name).write_bytes(data)


def add(target, folder):
    """Takes the files of `folder` into the target's inputs; returns how many there are then."""
    inputs = read(target)
    inputs.update((path.name, path.read_bytes()) for path in folder.iterdir() if path.is_file())
    write(target, inputs)
    return len(inputs)


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("unpack", "add"):
        print("usage: corpus.py unpack|add TARGET FOLDER", file=sys.stderr)
        return 2
    _, command, target, folder = sys.argv
    if command == "unpack":
        unpack(target, pathlib.Path(folder))
    else:
        print(f"{target}: {add(target, pathlib.Path(folder))} inputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
