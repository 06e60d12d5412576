#!/usr/bin/env python3
"""Style as a test: reads every file of the tree once, prints file:line: error: ... per violation.

Comes from: the working tree. Goes to: `ctest -L tidy` (tests tidy_style and tidy_format).
Thread safety: one process, nothing shared.

The rules are those of docs/style.md that a script can decide; the sizes of classes, functions and
files are in tools/limits.py. `--only format` runs clang-format-14 over the C++ files; `--only
style` runs everything else; `--fix` lets clang-format rewrite and removes needless rows of
tools/over_limit.txt.
"""

import argparse
import ast
import pathlib
import re
import shutil
import subprocess
import sys
import tokenize

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import limits  # noqa: E402  (found only after the line above)
import plain_english  # noqa: E402
import source_text  # noqa: E402
import type_names  # noqa: E402

LINE_COLUMNS_MAX = 100
CLANG_FORMAT = "clang-format-14"

# Texts not ours to change.
FOREIGN = {"LICENSE"}
# Inputs of tests, whose exact bytes matter.
INPUT_FOLDERS = ("tests/fuzz/corpus/",)
CODE_SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".py", ".sh", ".proto", ".cmake"}

# One letter of a word is in brackets where this list would otherwise find itself.
BANNED_ANYWHERE = (
    (re.compile(r"\b[T]ODO\b(?!\(#\d+\))"), "name an issue, as in TO" "DO(#12), or do it"),
    (re.compile(r"\b([F]IXME|[X]XX|[H]ACK)\b"), "fix it or open an issue"),
    (re.compile(r"\b[p]laceholder\b", re.IGNORECASE), "the real thing belongs here"),
    (re.compile(r"(?<![\w.-])/([w]ork|[r]oot|[h]ome/\w+|[U]sers)/|/tmp/[b]ash|/opt/[p]ypi"),
     "a path of one machine"),
    (re.compile(r"\b([p]ypi\.org|[p]ythonhosted\.org|[d]ownload\.pytorch\.org)"),
     "a registry host"),
    (re.compile(r"\.\./[s]hared\b|\b[r]ef-[a-z]+(-[a-z]+)*\.md\b"
                r"|\b([a]rchitecture|[d]ecisions)\.md\b"),
     "a page outside this repository"),
    (re.compile(r"\b[A]I\b|(?<!user.)\b(sub-?)?[a]gents?\b|\b[c]hat ?bot\b"),
     "speak of the product, not of who wrote it"),
)
# Checked in comments and prose only: generated gRPC code has classes of that name.
BANNED_IN_COMMENTS = (
    (re.compile(r"(?<!gRPC )(?<!generated )\b[s]tub(s|bed)?\b", re.IGNORECASE),
     "the real thing belongs here"),
)
# Checked in C++ code without comments.
BANNED_IN_CPP = (
    (re.compile(r"\babsl::(Mutex|MutexLock|CondVar)\b"), "use Mutex of common/base/sync.h"),
    (re.compile(r"\babsl/synchronization/"), "use Mutex of common/base/sync.h"),
    (re.compile(r"\busing namespace std\b"), "name what is used"),
)
THREAD = re.compile(r"\bstd::j?thread\b(?!::hardware_concurrency)|\bpthread_create\b")
# Where threads are born. Everything else takes an executor, a worker pool or an ExecutorSource.
# In addition to the pools: the client's one queue thread, and the binding's runner of blocking
# calls.
THREAD_HOMES = (
    "common/threads/thread_",
    "client/cpp/transport/grpc_transport.",
    "client/python/binding/operation.",
    "tests/",
    "bench/",
)
BANNED_IN_PYTHON = (
    (re.compile(r"\b[p]ickle\.loads?\b"), "executes what it reads"),
    (re.compile(r"\bweights_only\s*=\s*[F]alse\b"), "executes what it reads"),
)
BANNED_IN_BUILD = (
    (re.compile(r"-ff[a]st-math|-Of[a]st\b"), "breaks bit-for-bit results (docs/numerics.md)"),
)


def _is_build_file(path):
    return path.name in ("CMakeLists.txt", "CMakePresets.json") or path.suffix == ".cmake"


def _search(patterns, text, path, found):
    for pattern, reason in patterns:
        for match in pattern.finditer(text):
            line = source_text.line_of(text, match.start())
            found.append((path, line, f"'{match.group(0)}' is banned: {reason}"))


def check_lines(path, text, found):
    """Tabs, trailing blanks and the final newline of all texts; line length of code."""
    if text and not text.endswith("\n"):
        found.append((path, text.count("\n") + 1, "no newline at the end of the file"))
    is_code = path.suffix in CODE_SUFFIXES or path.name == "CMakeLists.txt"
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip() and not (path.suffix == ".md" and line.endswith("  ")):
            found.append((path, number, "blanks at the end of the line"))
        if "\t" in line:
            found.append((path, number, "a tab"))
        # A line of one word, or with a link, cannot be broken.
        breakable = " " in line.strip() and "://" not in line
        if is_code and len(line) > LINE_COLUMNS_MAX and breakable:
            found.append((path, number, f"{len(line)} columns, the limit is {LINE_COLUMNS_MAX}"))


def check_header(path, text, paths, found):
    """Each code file begins with a comment that says what it is for; C++ headers are guarded.

    A source file may leave that to the header of the same name, a CMakeLists.txt to its room.
    """
    if not text.strip() or path.suffix not in CODE_SUFFIXES:
        return
    lines = text.split("\n")
    first = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
    slashes = source_text.is_cpp(path) or path.suffix == ".proto"
    described = path.suffix != ".h" and path.with_suffix(".h") in paths
    if not described and not first.startswith(("//", "/*") if slashes else ("#", '"""', 'r"""')):
        found.append((path, 1, "the file must begin with a comment that says what it is for"))
    if path.suffix == ".h" and not re.search(r"^#pragma once$", text, re.MULTILINE):
        found.append((path, 1, "no #pragma once"))


def check_words(path, text, found):
    """Banned words, each list where it applies."""
    _search(BANNED_ANYWHERE, text, path, found)
    if source_text.is_cpp(path):
        code, comments = source_text.split_cpp(text)
        _search(BANNED_IN_COMMENTS, comments, path, found)
        _search(BANNED_IN_CPP, code, path, found)
        if not str(path).startswith(THREAD_HOMES):
            _search(((THREAD, "only common/threads makes threads; take an ExecutorSource"),),
                    code, path, found)
    if path.suffix in (".md", ".proto"):
        _search(BANNED_IN_COMMENTS, text, path, found)
    if path.suffix == ".py":
        _search(BANNED_IN_PYTHON, text, path, found)
    if _is_build_file(path):
        _search(BANNED_IN_BUILD, text, path, found)


def check_plain(path, text, found):
    """Comments and pages in plain English."""
    try:
        plain_english.check(path, text, found)
    except (SyntaxError, tokenize.TokenError):
        return  # check_python reports it.


def check_python(path, text, found):
    """A Python file compiles."""
    if path.suffix != ".py":
        return
    try:
        ast.parse(text, filename=str(path))
    except SyntaxError as error:
        found.append((path, error.lineno or 1, f"not valid Python: {error.msg}"))


def check_built(texts, found):
    """Each .cc file is named in the CMakeLists.txt of its folder or of one above."""
    words = {path.parent: set(re.split(r"[\s()\"]+", re.sub(r"#.*", "", text)))
             for path, text in texts.items() if path.name == "CMakeLists.txt"}
    for path in texts:
        if path.suffix not in (".cc", ".cpp", ".cu"):
            continue
        named = any(
            folder in words and any(
                prefix + path.relative_to(folder).as_posix() in words[folder]
                for prefix in ("", "${CMAKE_CURRENT_SOURCE_DIR}/", "${PROJECT_SOURCE_DIR}/"))
            for folder in path.parents)
        if not named:
            found.append((path, 1, "no CMakeLists.txt names this file, so nothing builds it"))


def check_style(root, fix=False):
    """Returns all violations of the style rules under root as (path, line, message).

    With fix, removes rows of tools/over_limit.txt that nothing needs any more.
    """
    found, texts = [], {}
    paths = set(source_text.list_files(root))
    for path in sorted(paths):
        text = source_text.read_text(pathlib.Path(root) / path)
        if text is None or path.name in FOREIGN or str(path).startswith(INPUT_FOLDERS):
            continue
        texts[path] = text
        check_lines(path, text, found)
        check_header(path, text, paths, found)
        check_words(path, text, found)
        check_plain(path, text, found)
        check_python(path, text, found)
    check_built(texts, found)
    limits.check(texts, limits.outlines_of(texts), CODE_SUFFIXES, found)
    type_names.check(texts, found)
    if fix:
        limits.remove_needless_rows(root, found)
    return sorted(found, key=lambda entry: (str(entry[0]), entry[1]))


def check_format(root, fix=False):
    """Returns the places where clang-format-14 would change a C++ file; with fix, changes them."""
    if not shutil.which(CLANG_FORMAT):
        return [(pathlib.PurePosixPath(".clang-format"), 1,
                 f"{CLANG_FORMAT} is not installed (apt-get install {CLANG_FORMAT})")]
    files = [str(p) for p in source_text.list_files(root) if source_text.is_cpp(p)]
    if not files:
        return []
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    result = subprocess.run([CLANG_FORMAT, "--style=file", *mode, *files], cwd=root, text=True,
                            capture_output=True, check=False)
    places = re.findall(r"^(.+?):(\d+):\d+: error: (.*)$", result.stderr, re.MULTILINE)
    found = [(pathlib.PurePosixPath(p), int(line), f"{message} (tools/tidy.py --fix)")
             for p, line, message in places]
    if result.returncode != 0 and not found:
        found.append((pathlib.PurePosixPath(".clang-format"), 1, result.stderr.strip()))
    return found


def main():
    """Prints every violation; the exit code is 1 when there is one."""
    parser = argparse.ArgumentParser(description="Checks the style of the tree.")
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--only", choices=("style", "format"))
    parser.add_argument("--fix", action="store_true",
                        help="let clang-format rewrite files; remove needless rows of the list")
    arguments = parser.parse_args()
    found = []
    if arguments.only != "format":
        found += check_style(arguments.root, arguments.fix)
    if arguments.only != "style":
        found += check_format(arguments.root, arguments.fix)
    for path, line, message in found:
        print(f"{path}:{line}: error: {message}")
    print(f"tidy: {len(found)} violations", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
