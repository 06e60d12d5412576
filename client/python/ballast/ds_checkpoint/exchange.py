"""Between DeepSpeed's checkpoints and the exports of ballast.torch's optimizers.

Comes from: scripts. Goes to: opt.load_export(), to_universal(). Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ballast.ds_checkpoint.errors import CheckpointError
from ballast.ds_checkpoint.universal import NamedState
from ballast.ds_checkpoint.universal_writer import Group
from ballast.ds_checkpoint.zero_states import MASTER

_EXPORTED_MASTER = "master"
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEP = "step"


def export_of(states: Mapping[str, NamedState]) -> dict[str, Any]:
    """What opt.load_export() takes: masters, moments and steps, found by the parameters' names.

    The optimizer keeps its own hyper-parameters. A parameter with only a master begins with moments
    of 0. The whole export is in memory: 12 bytes per parameter.
    """
    state = {}
    for index, named in enumerate(states.values()):
        arrays = dict(named.arrays)
        master = arrays.pop(MASTER)
        if not arrays:
            arrays = {key: torch.zeros_like(master) for key in _MOMENTS}
        state[index] = {_STEP: named.step or 0, _EXPORTED_MASTER: master, **arrays}
    return {"state": state, "param_groups": [], "names": dict(enumerate(states))}


def states_of(export: Mapping[str, Any]) -> tuple[dict[str, NamedState], list[Group]]:
    """What opt.export_state() gave, as to_universal() takes it: states by name, and groups.

    Parameters without state, which are frozen, are left out. CheckpointError for an export without
    names.
    """
    names = export.get("names")
    if not isinstance(names, Mapping) or set(names) != set(export["state"]):
        raise CheckpointError(
            "export_state()", "has no names; build the optimizer from model.named_parameters()"
        )
    states = {names[index]: _state(saved) for index, saved in export["state"].items()}
    groups = []
    for group in export["param_groups"]:
        hyper = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        groups.append(Group([names[i] for i in group["params"] if i in names], hyper))
    return states, groups


def _state(saved: Mapping[str, Any]) -> NamedState:
    arrays = {key: value for key, value in saved.items() if key not in (_STEP, _EXPORTED_MASTER)}
    return NamedState({MASTER: saved[_EXPORTED_MASTER], **arrays}, int(saved[_STEP]))
