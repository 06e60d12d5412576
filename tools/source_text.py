"""Reads files for the tidy checks: lists the tree, splits C++ into code and comments.

Comes from: the working tree. Goes to: tools/check_rooms.py and tools/tidy.py.
Thread safety: pure functions.
"""

import functools
import os
import pathlib
import re
import subprocess

SKIPPED_FOLDERS = {".git", ".venv", "build", "out", "__pycache__", ".pytest_cache"}
CPP_SUFFIXES = {".h", ".cc", ".cpp", ".cu"}

_RAW_STRING = re.compile(r'R"([^()\\\s]{0,16})\(')


def list_files(root):
    """Returns the paths (relative, sorted) of all files of the tree under root.

    With git: tracked files, and untracked ones unless ignored. Without (an exported tree):
    everything outside the folders that hold build results.
    """
    root = pathlib.Path(root)
    if (root / ".git").exists():
        listing = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-coz", "--exclude-standard"],
            capture_output=True, check=False)
        if listing.returncode == 0:
            names = {os.fsdecode(name) for name in listing.stdout.split(b"\0") if name}
            return sorted(pathlib.PurePosixPath(n) for n in names if (root / n).is_file())
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [s for s in subfolders
                         if s not in SKIPPED_FOLDERS and not s.endswith(".egg-info")]
        base = pathlib.Path(folder).relative_to(root).as_posix()
        found += [pathlib.PurePosixPath(base, name) for name in names]
    return sorted(found)


def read_text(path):
    """Returns the file's text, or None for a file other than UTF-8 text."""
    data = pathlib.Path(path).read_bytes()
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def is_cpp(path):
    """Says whether the path names a C++ or CUDA file."""
    return pathlib.PurePosixPath(path).suffix in CPP_SUFFIXES


def _literal_end(text, start):
    """Returns the offset after the string or character literal whose quote is at start."""
    quote = text[start]
    at = start + 1
    while at < len(text) and text[at] != quote and text[at] != "\n":
        at += 2 if text[at] == "\\" else 1
    return min(at + 1, len(text))


def _is_digit_separator(text, at):
    return at > 0 and text[at - 1].isalnum() and text[at + 1:at + 2].isalnum()


def _tokens(text):
    """Yields (kind, start, end) for each comment and literal, in order."""
    at = 0
    while at < len(text):
        two = text[at:at + 2]
        if two == "//":
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            yield "comment", at, end
        elif two == "/*":
            end = text.find("*/", at + 2)
            end = len(text) if end < 0 else end + 2
            yield "comment", at, end
        elif two == 'R"' and (raw := _RAW_STRING.match(text, at)):
            end = text.find(")" + raw.group(1) + '"', raw.end())
            end = len(text) if end < 0 else end + len(raw.group(1)) + 2
            yield "literal", at + 1, end
        elif text[at] == '"' or (text[at] == "'" and not _is_digit_separator(text, at)):
            end = _literal_end(text, at)
            yield "literal", at, end
        else:
            at += 1
            continue
        at = end


def _blank(piece):
    return re.sub(r"[^\n]", " ", piece)


@functools.cache  # Three rules read each file.
def split_cpp(text):
    """Splits C++ text into (code, comments), both as long as text and with the same line breaks.

    In code, comments and the inside of literals are blanks; the names in #include lines stay. In
    comments, everything else is blank.
    """
    code, comments, last = [], [], 0
    for kind, start, end in _tokens(text):
        code.append(text[last:start])
        comments.append(_blank(text[last:start]))
        piece = text[start:end]
        if kind == "comment":
            code.append(_blank(piece))
            comments.append(piece)
        else:
            line_start = text.rfind("\n", 0, start) + 1
            is_include = re.match(r"\s*#\s*include\b", text[line_start:start])
            inside = piece[1:-1] if len(piece) > 1 else ""
            quote = piece[0]
            code.append(piece if is_include else quote + _blank(inside) + quote * (len(piece) > 1))
            comments.append(_blank(piece))
        last = end
    code.append(text[last:])
    comments.append(_blank(text[last:]))
    return "".join(code), "".join(comments)


def line_of(text, offset):
    """Returns the 1-based line number of an offset."""
    return text.count("\n", 0, offset) + 1
