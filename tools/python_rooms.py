"""The rooms of the Python package: which of its folders may import which.

Comes from: tools/check_rooms.py, which runs it. Thread safety: pure functions.
"""

import ast

PACKAGE = "client/python/ballast/"
# Rooms of modules in the package's folder; the other ones there are the room "root".
MODULES = {
    "_rejoin": "rejoin", "nvme_tune": "programs", "report": "programs", "run": "programs"}
# A row names only rooms of rows above it, so that there is no circle.
ROOMS = {
    "root": (),
    "ds_checkpoint": ("root",),
    "ds_config": ("root",),
    "ops": ("root",),
    "monitor": ("root", "ds_config"),
    "launcher": ("root", "ds_config"),
    "torch": ("root", "ds_checkpoint"),
    # Servers of its own for a restore, and the optimizer that attaches again.
    "rejoin": ("root", "launcher", "torch"),
    "deepspeed": (
        "root", "ds_checkpoint", "ds_config", "ops", "monitor", "torch", "rejoin"),
    # ballast.deepspeed: a Trainer's ds_config builds the same optimizer.
    "hf": ("root", "ds_config", "torch", "rejoin", "deepspeed"),
    "programs": ("root", "ds_config", "launcher"),
}


def room_of(module):
    """Returns the room (key of ROOMS) of a module of the package, "ballast" or "ballast.x"."""
    first = (module.split(".") + [""])[1]
    return first if first in ROOMS else MODULES.get(first, "root")


def _imported(node):
    # The modules of our package that an import statement may mean.
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        names = []
    return [name for name in names if name.split(".")[0] == "ballast"]


def check(path, text):
    """Yields (line, message) for each import that the table does not have, of a module of ours."""
    room = room_of(str(path)[len(PACKAGE) - len("ballast/"):-len(".py")].replace("/", "."))
    for node in ast.walk(ast.parse(text)):
        for name in _imported(node):
            target = room_of(name)
            if target != room and target not in ROOMS[room]:
                allowed = ", ".join(ROOMS[room]) or "no other room"
                yield node.lineno, (
                    f"{room} may not import {target} ({name}); it may import {allowed}")
