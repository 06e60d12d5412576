"""Where each parameter of a ZeRO checkpoint lies in the ranks' vectors.

Comes from: ballast.ds_checkpoint.zero. Thread safety: pure functions.

Stages 1 and 2: the ranks' vectors of a group, one after the other, are the group: its parameters,
each with its alignment padding, and a padding that the last rank does not save. Stage 3: each
parameter is cut into as many equal pieces as there are ranks, the last one padded; a rank's groups,
one after the other, are its pieces of all parameters.
Source: deepspeed/utils/zero_to_fp32.py and deepspeed/checkpoint/ds_to_universal.py of 0.19.8.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from ballast.ds_checkpoint.errors import CheckpointError, shown

Shapes = dict[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Piece:
    """Elements [start, start + count) of the vector of one group of one rank."""

    rank: int
    group: int
    start: int
    count: int


Pieces = dict[str, tuple[Piece, ...]]


def cut_stage_1(
    path: str, groups: list[Shapes], lengths: list[list[int]], paddings: list[list[int]]
) -> Pieces:
    """Each parameter's pieces, in its elements' order, in stages 1 and 2.

    groups: shapes in the order of the vectors. lengths: elements of each rank's groups. paddings:
    elements after each parameter of each group. Raises CheckpointError where they do not fit.
    """
    found: Pieces = {}
    for group, shapes in enumerate(groups):
        row = [rank[group] for rank in lengths]
        starts = _starts(row)
        offset = 0
        for (name, shape), padding in zip(shapes.items(), paddings[group]):
            count = math.prod(shape)
            spans = _spans(starts, offset, count)
            found[name] = tuple(Piece(rank, group, start, n) for rank, start, n in spans)
            offset += count + padding
        align = 2 * len(lengths)
        if -(-offset // align) != -(-sum(row) // align):
            raise CheckpointError(
                path, f"group {group} has {sum(row)} elements, its parameters {offset}"
            )
        _check_whole(path, found, shapes)
    return found


def cut_stage_3(path: str, groups: list[Shapes], lengths: list[list[int]]) -> Pieces:
    """Each parameter's pieces, in its elements' order, in stage 3; arguments as of cut_stage_1."""
    if any(rank != lengths[0] for rank in lengths):
        raise CheckpointError(path, "the ranks' groups differ in length")
    found: Pieces = {}
    starts = _starts(lengths[0])
    offset = 0
    for shapes in groups:
        for name, shape in shapes.items():
            share = -(-math.prod(shape) // len(lengths))
            found[name] = tuple(_shares(starts, offset, math.prod(shape), len(lengths)))
            offset += share
        _check_whole(path, found, shapes)
    if offset != starts[-1]:
        raise CheckpointError(path, f"a rank has {starts[-1]} elements, its parameters {offset}")
    return found


def _starts(lengths: Sequence[int]) -> list[int]:
    """Where each vector of a row begins, and where the row ends."""
    return [0, *itertools.accumulate(lengths)]


def _spans(starts: list[int], offset: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(index of a vector, start in it, elements) of the row's elements [offset, offset + count)."""
    end = min(offset + count, starts[-1])
    while offset < end:
        index = bisect.bisect_right(starts, offset) - 1
        stop = min(end, starts[index + 1])
        yield index, offset - starts[index], stop - offset
        offset = stop


def _shares(starts: list[int], offset: int, count: int, world: int) -> Iterator[Piece]:
    """A parameter's pieces of all ranks, without the padding of the last ones."""
    share = -(-count // world)
    for rank in range(world):
        mine = min(share, max(0, count - rank * share))
        for group, start, elements in _spans(starts, offset, mine):
            yield Piece(rank, group, start, elements)


def _check_whole(path: str, found: Pieces, shapes: Shapes) -> None:
    for name, shape in shapes.items():
        count = sum(piece.count for piece in found[name])
        if count != math.prod(shape):
            raise CheckpointError(
                path, f"has {count} of the {math.prod(shape)} elements of {shown(name)}"
            )
