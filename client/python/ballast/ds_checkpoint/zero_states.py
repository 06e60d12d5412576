"""A rank's optimizer-state file, checked: masters, moments, steps, paddings.

Comes from: ballast.ds_checkpoint.zero. Goes to: ballast.ds_checkpoint.fields. Thread safety: pure
functions, except for reading steps stored as tensors.
"""

from __future__ import annotations

from typing import Any

from ballast.ds_checkpoint.errors import CheckpointError, shown
from ballast.ds_checkpoint.fields import field, number, parameter_name, vector
from ballast.ds_checkpoint.torch_file import FileTensor

MASTER = "fp32"
OPTIMIZER = "optimizer_state_dict"
_BASE = "base_optimizer_state"
_SINGLE = "single_partition_of_fp32_groups"
_FLAT = "fp32_flat_groups"
_PADDING_MAX = 1 << 40

# A file's path and its "optimizer_state_dict".
RankState = tuple[str, dict[Any, Any]]


def stage_of(path: str, state: dict[Any, Any]) -> int:
    """1, 2 or 3."""
    stage = number(state.get("zero_stage"))
    if stage is None and "zero_stage" not in state and _SINGLE in state:
        return 1  # bf16 with fp32 accumulation: the same layout, without the field
    if stage not in (1, 2, 3):
        raise CheckpointError(path, f"is of ZeRO stage {shown(stage)}; 1, 2 and 3 are read")
    return stage


def check_world(states: list[RankState]) -> None:
    """Every rank must say as many ranks as there are files."""
    for path, state in states:
        said = field(path, state, "partition_count", object)
        counts = said if isinstance(said, list) else [said]
        ranks = [number(count) for count in counts]
        if not ranks or any(rank != len(states) for rank in ranks):
            raise CheckpointError(
                path,
                f"is one of {shown(ranks[0] if ranks else None)} ranks, but there are "
                f"{len(states)} *_optim_states.pt next to it",
            )


def vectors_of(states: list[RankState], stage: int) -> dict[str, list[list[FileTensor]]]:
    """By array ("fp32", "exp_avg", ...), rank and group.

    A moment lies as its master does and is at least as long. What not every rank and group has is
    left out.
    """
    key = _FLAT if stage == 3 else _SINGLE
    masters = []
    for path, state in states:
        groups = field(path, state, key, list)
        masters.append([vector(path, f"a vector of {key}", group) for group in groups])
        if len(groups) != len(masters[0]):
            raise CheckpointError(path, f"has {len(groups)} groups, rank 0 has {len(masters[0])}")
    vectors = {MASTER: masters}
    by_rank = [_moments(path, state, stage, own) for (path, state), own in zip(states, masters)]
    for name in by_rank[0]:
        found = [rank[name] for rank in by_rank if name in rank]
        if len(found) == len(states) and name != MASTER:
            vectors[name] = found
    return vectors


def _moments(
    path: str, state: dict[Any, Any], stage: int, masters: list[FileTensor]
) -> dict[str, list[FileTensor]]:
    groups = _group_states(state, stage)
    found: dict[str, list[FileTensor]] = {}
    for index, master in enumerate(masters):
        for name, value in groups.get(index, {}).items():
            if isinstance(value, FileTensor) and len(value.shape) == 1:
                if value.numel >= master.numel and value.dtype.is_floating_point:
                    found.setdefault(parameter_name(path, name), []).append(value)
    return {name: values for name, values in found.items() if len(values) == len(masters)}


def _group_states(state: dict[Any, Any], stage: int) -> dict[Any, dict[Any, Any]]:
    """torch's state of the wrapped optimizer: a dict per group."""
    base = state.get(OPTIMIZER if stage == 3 else _BASE)
    states = base.get("state") if isinstance(base, dict) else None
    if not isinstance(states, dict):
        return {}
    return {key: value for key, value in states.items() if isinstance(value, dict)}


def steps_of(state: dict[Any, Any], stage: int, count: int) -> list[int | None]:
    """Steps of each of `count` groups; None where the file does not say."""
    groups = _group_states(state, stage)
    return [number(groups.get(index, {}).get("step")) for index in range(count)]


def paddings_of(path: str, state: dict[Any, Any], counts: list[int]) -> list[list[int]]:
    """Elements after each parameter that belong to none. counts: parameters of each group."""
    said = state.get("param_alignment_paddings")
    if said is None:
        return [[0] * count for count in counts]
    groups = said if isinstance(said, list) else []
    found = [[number(p) for p in group] for group in groups if isinstance(group, list)]
    checked = [[p for p in group if p is not None and 0 <= p <= _PADDING_MAX] for group in found]
    if [len(group) for group in checked] != counts or len(groups) != len(counts):
        raise CheckpointError(path, "param_alignment_paddings does not fit the parameters")
    return checked
