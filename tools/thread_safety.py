#!/usr/bin/env python3
"""Checks the lock annotations with Clang's thread-safety analysis; nothing is built.

Comes from: the working tree, and a build folder's compile_commands.json, for its include folders.
Goes to: `ctest -L tidy` (test tidy_locks), as Clang's own file:line: error: ...
Thread safety: one process, which waits for its compilers.

Only files that lock are read: those that use a Mutex, and those whose own room's headers say what
a lock guards. The files of one folder are read together, a dozen at a time, because most of the
time goes into headers.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import source_text  # noqa: E402  (found only after the line above)

CLANG = "clang++-14"
FOLDERS = ("client/", "common/", "proto/", "server/", "tools/")
# Their headers come with other packages, or with what only some machines have.
LEFT_OUT = ("client/python/binding/", "client/device/cuda/")
BATCH_FILES = 12

_LOCKS = re.compile(r"\bMutex(?:Lock)?\b")
_GUARDS = re.compile(r"\bABSL_(?:PT_)?GUARDED_BY\b|\bABSL_\w*LOCKS?_\w+\b")
_INCLUDE = re.compile(r'^#include "([^"\n]+)"', re.MULTILINE)


def locking_files(root):
    """Returns the .cc files under root (relative, sorted) that take locks or touch guarded data."""
    texts = {}
    for path in source_text.list_files(root):
        name = str(path)
        if name.startswith(FOLDERS) and not name.startswith(LEFT_OUT) and source_text.is_cpp(path):
            texts[name] = source_text.read_text(pathlib.Path(root) / path) or ""
    guarding = {name for name, code in texts.items()
                if name.endswith(".h") and _GUARDS.search(code)}
    found = []
    for name, code in texts.items():
        own = [other for other in _INCLUDE.findall(code)
               if pathlib.PurePosixPath(other).parent == pathlib.PurePosixPath(name).parent]
        if name.endswith(".cc") and (_LOCKS.search(code) or guarding.intersection(own)):
            found.append(name)
    return sorted(found)


def include_flags(commands):
    """Returns the -I and -isystem flags of all entries of compile_commands.json, each once."""
    flags = {}
    for entry in commands:
        words = iter(shlex.split(entry["command"]))
        for word in words:
            if word == "-isystem":
                flags[word, next(words)] = None
            elif word.startswith("-I"):
                flags[word,] = None
    return [word for flag in flags for word in flag]


def batches(files):
    """Yields lists of at most BATCH_FILES files of one folder."""
    by_folder = {}
    for name in files:
        by_folder.setdefault(pathlib.PurePosixPath(name).parent, []).append(name)
    for names in by_folder.values():
        for first in range(0, len(names), BATCH_FILES):
            yield names[first:first + BATCH_FILES]


def check(root, names, flags):
    """Returns Clang's output for these files, empty when it has no objection.

    Two files may give one name to two functions of their own. Where that makes a batch unreadable,
    its files are read one by one.
    """
    output = _analyse(root, names, flags)
    if output and len(names) > 1:
        output = "".join(_analyse(root, [name], flags) for name in names)
    return output


def _analyse(root, names, flags):
    with tempfile.NamedTemporaryFile("w", suffix=".cc", encoding="utf-8") as batch:
        batch.writelines(f'#include "{name}"\n' for name in names)
        batch.flush()
        ran = subprocess.run(
            [CLANG, "-std=c++20", "-fsyntax-only", "-Wno-everything", "-Wthread-safety",
             "-Werror=thread-safety",
             '-DBALLAST_VERSION="0"', '-DBALLAST_REVISION="0"', f"-I{root}", *flags, batch.name],
            capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr if ran.returncode else ""


def main():
    """Prints every objection of Clang's; the exit code is 1 when there is one."""
    parser = argparse.ArgumentParser(description="Checks lock annotations with Clang.")
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--build", type=pathlib.Path, required=True,
                        help="a configured build folder, for its compile_commands.json")
    arguments = parser.parse_args()
    commands = json.loads((arguments.build / "compile_commands.json").read_text(encoding="utf-8"))
    flags = include_flags(commands)
    files = locking_files(arguments.root)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        outputs = list(pool.map(lambda names: check(arguments.root, names, flags),
                                batches(files)))
    for output in filter(None, outputs):
        print(output, end="")
    failed = sum(map(bool, outputs))
    print(f"thread_safety: {len(files)} files, {failed} of {len(outputs)} batches with objections",
          file=sys.stderr)
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
