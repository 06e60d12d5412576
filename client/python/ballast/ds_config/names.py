"""Unknown names: the known key probably meant.

Comes from: ballast.ds_config.resolve. Goes to: the refusals of a report. Thread safety: pure
functions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ballast.ds_config.table import HINTS

_NEAR = 0.75


def dotted(path: tuple[str, ...]) -> str:
    """A path for messages and lookups: `zero_optimization.stage`."""
    return ".".join(path)


def advice(path: tuple[str, ...], known: Iterable[str]) -> str:
    """What to write in place of an unknown key: a hint, its near sibling, or its right section,
    where only one has a key of that name.

    known: dotted paths of all keys, sections and second names.
    """
    whole = dotted(path)
    if whole in HINTS:
        return HINTS[whole]
    names = sorted(set(known))
    if whole in names:  # only a name with dots in it can be unknown and known
        return f"write nested objects: {whole} is {path[-1].rpartition('.')[2]!r} in a section"
    parent = whole[: -len(path[-1])]
    siblings = {
        name[len(parent) :].split(".")[0]: None for name in names if name.startswith(parent)
    }
    near = difflib.get_close_matches(path[-1][:100], siblings, n=1, cutoff=_NEAR)
    if near:
        return f"did you mean {parent}{near[0]}?"
    moved = [name for name in names if name.rpartition(".")[2] == path[-1]]
    return f"did you mean {moved[0]}?" if len(moved) == 1 else "delete it, or see the list of keys"


def nearest(word: str, allowed: Iterable[str]) -> str:
    """` did you mean X?` for a value close to one of `allowed`; "" where none is near."""
    folded = {name.lower(): name for name in allowed}
    near = difflib.get_close_matches(word.lower()[:100], folded, n=1, cutoff=_NEAR)
    return f"did you mean {folded[near[0]]}? " if near else ""
