#!/usr/bin/env python3
"""Checks the first lines of a commit message: room in front, at most 90 characters, a blank line.

Comes from: .githooks/commit-msg, with the file that holds the message. Goes to: stderr; the exit
code is 1 for a message that breaks a rule. Thread safety: one process, nothing shared.

A room is a folder of the tree, by its name or path: `round: ...`, `tests/tidy: ...`; several are
joined by commas. Git's own subjects (Merge, Revert, fixup!, squash!, amend!) are free.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import source_text  # noqa: E402  (found only after the line above)

SUBJECT_CHARACTERS_MAX = 90
FREE = re.compile(r'^(Merge |Revert "|Reapply "|fixup! |squash! |amend! )')
SUBJECT = re.compile(r"^([a-z][\w./-]*(?:, [a-z][\w./-]*)*): \S")


def rooms_of(paths):
    """Returns the names and paths of all folders that hold a file of `paths`."""
    rooms = set()
    for path in paths:
        for folder in path.parents:
            if folder.name:
                rooms |= {folder.name.lstrip("."), folder.as_posix().lstrip(".")}
    return rooms


def check(message, rooms):
    """Returns the faults of a commit message, one sentence each."""
    lines = [line for line in message.split("\n") if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if FREE.match(subject):
        return []
    found = []
    if len(subject) > SUBJECT_CHARACTERS_MAX:
        found.append(f"the subject has {len(subject)} characters, the limit is "
                     f"{SUBJECT_CHARACTERS_MAX}; reasons and measurements belong into the body")
    prefix = SUBJECT.match(subject)
    if not prefix:
        found.append("the subject begins with a room, as in `round: refuse a second frame`")
    else:
        found += [f"'{room}' is no folder of this tree" for room in prefix.group(1).split(", ")
                  if room not in rooms]
    if len(lines) > 1 and lines[1].strip():
        found.append("a blank line stands between subject and body")
    return found


def main():
    """Checks the message in the file that the first argument names."""
    root = pathlib.Path(__file__).resolve().parent.parent
    message = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    found = check(message, rooms_of(source_text.list_files(root)))
    for line in found:
        print(f"commit-msg: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
