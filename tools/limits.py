"""Limits for classes, functions, files and folders, and the list of what still exceeds them.

Comes from: the texts of the tree and tools/over_limit.txt. Goes to: tools/tidy.py and
tools/measure.py.
Thread safety: pure functions.

A row of the list says how large its subject is today:
  class NAME METHODS FIELDS FILES     a class declared in a .cc file is PATH:NAME
  function PATH NAME LINES            the longest of that name in that file
  file PATH LINES
  folder PATH FILES                   its C++ files, without those of its subfolders
Growth beyond a row is an error. So is a row that the tree no longer needs.
"""

import ast
import collections
import dataclasses
import pathlib
import re

import cpp_outline
import source_text

LIST = pathlib.PurePosixPath("tools/over_limit.txt")
NEEDLESS = "remove the row"
METHODS_MAX = 45
FIELDS_MAX = 25
CLASS_FILES_MAX = 2
FUNCTION_LINES_MAX = 40
FILE_LINES_MAX = 400
TEST_FILE_LINES_MAX = 600  # also of benchmarks
FOLDER_FILES_MAX = 30

# Words that name a subject in a row, and numbers after them.
_ROW_SHAPES = {"class": (1, 3), "function": (2, 1), "file": (1, 1), "folder": (1, 1)}


@dataclasses.dataclass
class Subject:
    """Something with a limit: where it stands, its sizes, and what to do when it exceeds them."""

    path: pathlib.PurePosixPath
    line: int
    sizes: tuple
    limits: tuple
    text: str
    remedy: str


@dataclasses.dataclass
class ClassShape:
    """A C++ class of the tree; `files` are the .cc files that define its member functions."""

    name: str
    path: pathlib.PurePosixPath
    line: int
    methods: int
    fields: list
    files: set


def is_test(path):
    """Says whether a file is part of the tests or benchmarks, not of the product."""
    return str(path).startswith(("tests/", "bench/"))


def _is_source(path):
    return path.suffix in (".cc", ".cpp", ".cu")


def _class_key(path, name):
    return f"{path}:{name}" if _is_source(path) else name


def _owner_of(path, function, shapes):
    """Returns the class whose member the function is, found as C++ looks names up, or None."""
    parts = function.name.split("::")[:-1]
    if not parts:
        return None
    for depth in range(len(function.scopes), -1, -1):
        name = "::".join((*function.scopes[:depth], *parts))
        for key in (f"{path}:{name}", name):
            if key in shapes:
                return shapes[key]
    return None


def class_shapes(outlines):
    """Returns {key: ClassShape} for {path: (functions, classes)} of cpp_outline."""
    shapes = {}
    for path, (_, classes) in outlines.items():
        for found in classes:
            key = _class_key(path, found.name)
            shapes[key] = ClassShape(key, path, found.line, len(found.methods), found.fields, set())
    for path, (functions, _) in outlines.items():
        for function in functions if _is_source(path) else ():
            owner = _owner_of(path, function, shapes)
            if owner:
                owner.files.add(path)
    return shapes


def _docstring_lines(node):
    """Returns how many lines a function's docstring takes; C++ has that text above the function."""
    if ast.get_docstring(node, clean=False) is None:
        return 0
    return node.body[0].end_lineno - node.body[0].lineno + 1


def _python_functions(text):
    """Returns the functions of a Python text, less docstrings; nothing where Python is invalid."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    return [cpp_outline.Function(node.lineno, node.end_lineno - _docstring_lines(node), node.name,
                                 ())
            for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def outlines_of(texts):
    """Returns {path: (functions, classes)} for the C++ and Python files of {path: text}."""
    outlines = {}
    for path, text in texts.items():
        if source_text.is_cpp(path):
            outlines[path] = cpp_outline.outline(text)
        elif path.suffix == ".py":
            outlines[path] = (_python_functions(text), [])
    return outlines


def _class_subjects(outlines):
    for key, shape in class_shapes(outlines).items():
        sizes = (shape.methods, len(shape.fields), len(shape.files))
        yield ("class", key), Subject(
            shape.path, shape.line, sizes, (METHODS_MAX, FIELDS_MAX, CLASS_FILES_MAX),
            f"class {shape.name} has {sizes[0]} methods, {sizes[1]} fields, {sizes[2]} .cc files",
            "give a part of its state to a class of its own")


def _function_subjects(outlines):
    for path, (functions, _) in outlines.items():
        for function in functions:
            lines = function.last - function.first + 1
            yield ("function", f"{path} {function.name}"), Subject(
                path, function.first, (lines,), (FUNCTION_LINES_MAX,),
                f"function {function.name} has {lines} lines", "give its parts names")


def _file_subjects(texts, code_suffixes):
    for path, text in texts.items():
        if path.suffix in code_suffixes or path.name == "CMakeLists.txt":
            lines = text.count("\n")
            most = TEST_FILE_LINES_MAX if is_test(path) else FILE_LINES_MAX
            yield ("file", str(path)), Subject(
                path, most + 1, (lines,), (most,), f"the file has {lines} lines",
                "split it by purpose")


def _folder_subjects(texts):
    sizes = collections.Counter(path.parent for path in texts if source_text.is_cpp(path))
    for folder, files in sizes.items():
        yield ("folder", str(folder)), Subject(
            folder, 1, (files,), (FOLDER_FILES_MAX,), f"the folder has {files} C++ files",
            "make a room of some that belong together")


def _rows(text, found):
    """Yields (line, kind, name, sizes) for each row of the list."""
    for number, row in enumerate(text.split("\n"), 1):
        words = row.split("#")[0].split()
        if not words:
            continue
        name_words, number_count = _ROW_SHAPES.get(words[0], (0, 0))
        at = 1 + name_words
        numbers = words[at:]
        if number_count == 0 or len(numbers) != number_count or not all(
                re.fullmatch(r"\d+", size) for size in numbers):
            found.append((LIST, number, f"'{row}' is no row: see tools/limits.py"))
            continue
        yield number, words[0], " ".join(words[1:at]), tuple(map(int, numbers))


def _exceeds(sizes, allowed):
    return any(size > most for size, most in zip(sizes, allowed))


def check(texts, outlines, code_suffixes, found):
    """Adds (path, line, message) for all that exceeds its limit or row, and for needless rows."""
    rows, needless = {}, {}
    for number, kind, name, sizes in _rows(texts.get(LIST, ""), found):
        rows[kind, name] = sizes
        needless[kind, name] = number
    for key, subject in (*_class_subjects(outlines), *_function_subjects(outlines),
                         *_file_subjects(texts, code_suffixes), *_folder_subjects(texts)):
        if not _exceeds(subject.sizes, subject.limits):
            continue
        needless.pop(key, None)
        allowed = tuple(map(max, rows.get(key, subject.limits), subject.limits))
        if _exceeds(subject.sizes, allowed):
            most = ", ".join(map(str, allowed))
            what = f"its row in {LIST} allows" if key in rows else "the limit is"
            found.append((subject.path, subject.line,
                          f"{subject.text}; {what} {most}: {subject.remedy}"))
    for (kind, name), number in needless.items():
        found.append((LIST, number, f"no {kind} {name} exceeds the limits: {NEEDLESS}"))


def remove_needless_rows(root, found):
    """Removes the rows that check() calls needless from the list under root, and from found."""
    needless = {line for path, line, message in found
                if path == LIST and message.endswith(NEEDLESS)}
    path = pathlib.Path(root, LIST)
    if needless:
        rows = path.read_text(encoding="utf-8").split("\n")
        path.write_text("\n".join(row for number, row in enumerate(rows, 1)
                                  if number not in needless), encoding="utf-8")
    found[:] = [entry for entry in found if entry[0] != LIST or entry[1] not in needless]
