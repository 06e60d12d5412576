#!/usr/bin/env python3
"""Prints the shape of the tree as Markdown: large classes, lengths of files and functions.

Comes from: the working tree. Goes to: the reader, to compare before and after a refactoring.
Thread safety: one process, nothing shared.

Classes, files and functions are those of C++, counted as tools/limits.py counts.
"""

import argparse
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import limits  # noqa: E402  (found only after the line above)
import source_text  # noqa: E402

CLASSES_SHOWN = 10
SHARES = {"p50": 0.5, "p90": 0.9, "max": 1.0}
CALLBACK_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*std::function\b")
CALLBACK_ROOM = "server/home/"
SIMULATOR = "tests/sim/"


def spread(values):
    """Returns 'p50 / p90 / max' of a list of numbers."""
    ordered = sorted(values) or [0]
    return " / ".join(str(ordered[round(share * (len(ordered) - 1))]) for share in SHARES.values())


def largest_classes(shapes):
    """Returns the rows of the product's classes with the most methods."""
    product = [shape for shape in shapes if not limits.is_test(shape.path)]
    product.sort(key=lambda shape: (-shape.methods, -len(shape.fields)))
    rows = ["| class | methods | fields | .cc files |", "|---|---|---|---|"]
    rows += [f"| {shape.name} | {shape.methods} | {len(shape.fields)} | {len(shape.files)} |"
             for shape in product[:CLASSES_SHOWN]]
    return rows


def lengths(texts, outlines):
    """Returns the rows of file and function lengths, product and tests apart."""
    rows = [f"| {' / '.join(SHARES)} | product | tests and benchmarks |", "|---|---|---|"]
    parts = [{path: text for path, text in texts.items() if limits.is_test(path) == test}
             for test in (False, True)]
    count = [f"{len(part)} files, {sum(text.count(chr(10)) for text in part.values())} lines"
             for part in parts]
    files = [spread(text.count("\n") for text in part.values()) for part in parts]
    functions = [spread(f.last - f.first + 1 for path in part for f in outlines[path][0])
                 for part in parts]
    for name, cells in (("C++", count), ("lines of a file", files),
                        ("lines of a function", functions)):
        rows.append(f"| {name} | {cells[0]} | {cells[1]} |")
    return rows


def callback_members(texts, shapes):
    """Returns how many fields of CALLBACK_ROOM hold a std::function, under an alias or not."""
    names = {name for text in texts.values() for name in CALLBACK_ALIAS.findall(text)}
    callback = re.compile(r"\b(std::function|" + "|".join(sorted(names)) + r")\b")
    return sum(bool(callback.search(field)) for shape in shapes for field in shape.fields
               if str(shape.path).startswith(CALLBACK_ROOM))


def totals(texts, shapes):
    """Returns the rows of single numbers: the simulator's lines and the callbacks of a room."""
    simulator = sum(text.count("\n") for path, text in texts.items()
                    if str(path).startswith(SIMULATOR))
    mentions = sum(text.count("std::function") for path, text in texts.items()
                   if str(path).startswith(CALLBACK_ROOM))
    return ["| what | number |", "|---|---|",
            f"| lines of {SIMULATOR} | {simulator} |",
            f"| std::function members in {CALLBACK_ROOM} | {callback_members(texts, shapes)} |",
            f"| std::function in {CALLBACK_ROOM} | {mentions} |"]


def main():
    """Prints the tables of the tree under --root."""
    parser = argparse.ArgumentParser(description="Prints the shape of the tree as Markdown.")
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
    root = pathlib.Path(parser.parse_args().root)
    texts = {path: source_text.read_text(root / path) or ""
             for path in source_text.list_files(root) if source_text.is_cpp(path)}
    outlines = limits.outlines_of(texts)
    shapes = list(limits.class_shapes(outlines).values())
    for table in (largest_classes(shapes), lengths(texts, outlines), totals(texts, shapes)):
        print("\n".join(table), end="\n\n")


if __name__ == "__main__":
    main()
