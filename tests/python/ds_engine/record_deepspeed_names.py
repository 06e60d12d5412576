"""Writes deepspeed_names.txt: the modules of DeepSpeed 0.19.8, and the names of some of them.

    .venv/bin/python tests/python/ds_engine/record_deepspeed_names.py DIR

DIR: the folder with the package deepspeed. Its files are parsed, none is run. A line is a
module's name below deepspeed; a colon is followed by the public names of a module that
ballast.deepspeed has, too.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "client" / "python"))

from ballast.deepspeed.submodules import MODULES  # noqa: E402

FILE = Path(__file__).with_name("deepspeed_names.txt")
HERE = {"", "accelerator", "comm", "utils", *MODULES}


def bound(node):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    return []


def names(path):
    found = {name for node in ast.parse(path.read_text()).body for name in bound(node)}
    return sorted(name for name in found if name != "*" and not name.startswith("_"))


def main():
    root = Path(sys.argv[1]) / "deepspeed"
    lines = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        lines.append(f"{name}: {' '.join(names(path))}" if name in HERE else name)
    FILE.write_text("\n".join(line.rstrip() for line in lines) + "\n")


if __name__ == "__main__":
    main()
