"""Universal checkpoints, written so that DeepSpeed 0.19.8 loads them, at any number of ranks.

Comes from: scripts. Goes to: the files of ballast.ds_checkpoint.universal. Thread safety: writes
one folder.

Every file holds tensors, numbers, strings, lists, tuples and dicts only, so that
torch.load(weights_only=True) reads it.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ballast.ds_checkpoint.errors import CheckpointError, shown
from ballast.ds_checkpoint.fields import parameter_name
from ballast.ds_checkpoint.universal import (
    COMMON,
    FOLDER,
    LATEST,
    MODELS,
    PARAM,
    NamedState,
)
from ballast.ds_checkpoint.zero_states import MASTER, OPTIMIZER

_FORMAT_OF = "0.19.8"
_VERSION = 0.4
_COMPONENT_BYTES_MAX = 255


@dataclasses.dataclass(frozen=True)
class Progress:
    """Counters of a DeepSpeed engine; steps are rounds, skipped ones included."""

    global_steps: int = 0
    global_samples: int = 0
    skipped_steps: int = 0


@dataclasses.dataclass(frozen=True)
class Group:
    """A parameter group: names of its parameters, in order, and its hyper-parameters (lr, ...)."""

    names: Sequence[str]
    hyper: Mapping[str, Any]


def to_universal(
    directory: str | os.PathLike[str],
    tag: str,
    states: Mapping[str, NamedState],
    groups: Sequence[Group],
    *,
    progress: Progress = Progress(),
    module: Mapping[str, torch.Tensor] | None = None,
    torch_optimizer: bool = False,
    client_state: Mapping[str, Any] | None = None,
) -> None:
    """Writes DIR/TAG and then DIR/latest_universal.

    states: the trained parameters' states, by name; each is looked up once, so a mapping may read
    it then. groups: those of the optimizer that will load it, in its order; together they name
    every state. module: buffers and frozen weights. torch_optimizer: whether that optimizer is
    torch's, which wants the step as a tensor; DeepSpeed's want a number. client_state: plain values
    that load_checkpoint returns. DeepSpeed needs equal steps within a group. Raises CheckpointError
    when TAG exists or is no name of a folder, names do not fit together, a value is not plain, or
    the disk refuses; then nothing of TAG exists.
    """
    root = os.fspath(directory)
    _check_component(root, tag, "tag")
    _check_names(root, states, groups)
    values = _plain(root, dict(client_state or {}))
    folder, part = os.path.join(root, tag), os.path.join(root, f".{tag}.part")
    if os.path.lexists(folder):
        raise CheckpointError(folder, "exists already")
    try:
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(os.path.join(part, FOLDER))
        steps, shapes = _write_states(part, states, groups, torch_optimizer)
        _save(_common(root, groups, steps), os.path.join(part, FOLDER, COMMON))
        model = _model(groups, shapes, progress, module or {}, values)
        for name in MODELS:
            _save(model, os.path.join(part, name))
        os.rename(part, folder)
        _write_latest(root, tag)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(folder, f"cannot be written: {shown(str(error))}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_component(root: str, name: Any, what: str) -> None:
    text = parameter_name(root, name)
    if "/" in text or text in (".", "..") or len(text.encode()) > _COMPONENT_BYTES_MAX:
        raise CheckpointError(root, f"the {what} {shown(text)} is no name of a folder")


def _check_names(root: str, states: Mapping[str, NamedState], groups: Sequence[Group]) -> None:
    names = [name for group in groups for name in group.names]
    for name in names:
        _check_component(root, name, "parameter")
    missing = [name for name in states if name not in set(names)]
    if missing or len(names) != len(states) or len(set(names)) != len(names):
        raise CheckpointError(
            root,
            f"the groups name {len(names)} parameters and there are {len(states)}"
            + (f"; {shown(missing[0])} is in none of them" if missing else ""),
        )
    unknown = [name for name in names if name not in states]
    if unknown:
        raise CheckpointError(root, f"there is no state of {shown(unknown[0])}")


def _write_states(
    part: str, states: Mapping[str, NamedState], groups: Sequence[Group], torch_optimizer: bool
) -> tuple[list[Any], dict[str, torch.Size]]:
    """Writes all parameters. Returns the step of each group and the shapes."""
    steps: list[Any] = []
    shapes = {}
    for group in groups:
        taken = set()
        for name in group.names:
            state = states[name]
            if MASTER not in state.arrays:
                raise CheckpointError(part, f"the state of {shown(name)} has no {MASTER!r}")
            shapes[name] = state.arrays[MASTER].shape
            taken.add(state.step or 0)
            _write_state(os.path.join(part, FOLDER, name), state, torch_optimizer)
        if len(taken) > 1:
            raise CheckpointError(
                part, f"{shown(group.names[0])} and others of its group have taken steps "
                f"{sorted(taken)}; DeepSpeed has one count for a group"
            )
        steps.append(_as_step(max(taken, default=0), torch_optimizer))
    return steps, shapes


def _write_state(folder: str, state: NamedState, torch_optimizer: bool) -> None:
    os.makedirs(folder)
    for key, array in state.arrays.items():
        _check_component(folder, key, "array")
        whole = array.detach().to("cpu", torch.float32).contiguous()
        # A view would take its whole storage with it.
        whole = whole.clone() if whole.untyped_storage().nbytes() != whole.nbytes else whole
        _save({PARAM: whole, "cat_dim": 0}, os.path.join(folder, f"{key}.pt"))
    _save(_as_step(state.step or 0, torch_optimizer), os.path.join(folder, "step.pt"))


def _as_step(step: int, torch_optimizer: bool) -> Any:
    return torch.tensor(float(step), dtype=torch.float32) if torch_optimizer else step


def _common(root: str, groups: Sequence[Group], steps: list[Any]) -> dict[str, Any]:
    """zero/optimizer_state.pt: of stages 1 and 2 at the top, of stage 3 below.

    clip_grad, dynamic_loss_scale and loss_scaler are left out, so that those of the engine that
    loads it stay.
    """
    packed = []
    for index, group in enumerate(groups):
        hyper = {key: value for key, value in group.hyper.items() if key != "params"}
        packed.append({**_plain(root, hyper), "params": [index]})
    state = {index: {"step": step} for index, step in enumerate(steps)}
    return {
        "partition_count": 1,
        "ds_version": _FORMAT_OF,
        "param_groups": packed,
        OPTIMIZER: {"state": state, "param_groups": packed},
    }


def _model(
    groups: Sequence[Group],
    shapes: Mapping[str, torch.Size],
    progress: Progress,
    module: Mapping[str, torch.Tensor],
    client_state: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        **client_state,
        "module": {name: tensor.detach().cpu().clone() for name, tensor in module.items()},
        "buffer_names": list(module),
        "optimizer": None,
        "param_shapes": [OrderedDict((n, shapes[n]) for n in group.names) for group in groups],
        "frozen_param_shapes": None,
        "shared_params": {},
        "frozen_param_fragments": None,
        "lr_scheduler": None,
        **dataclasses.asdict(progress),
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_config": {},
        "ds_version": _FORMAT_OF,
        "universal_checkpoint_info": {"universal_checkpoint_version": _VERSION},
    }


def _plain(path: str, value: Any) -> Any:
    """A copy of plain values; a tensor of one element becomes a number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(path, child) for child in value)
    if isinstance(value, Mapping) and all(isinstance(key, (str, int)) for key in value):
        return {key: _plain(path, child) for key, child in value.items()}
    raise CheckpointError(
        path, f"cannot hold a {type(value).__name__}; numbers, strings, lists and dicts are written"
    )


def _save(value: Any, path: str) -> None:
    with open(path, "wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())


def _write_latest(root: str, tag: str) -> None:
    path = os.path.join(root, LATEST)
    with open(f"{path}.part", "w") as file:
        file.write(tag)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.part", path)
