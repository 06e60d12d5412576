"""DeepSpeed's universal checkpoints on this machine, as a source for load_export().

Comes from: ballast.torch.files. Goes to: ballast.ds_checkpoint, ballast.torch.load. A source is the
directory with `latest_universal`, or the folder of one tag. Nothing of a file is run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from ballast.ds_checkpoint.universal import FOLDER, LATEST, NamedState, load_universal
from ballast.ds_checkpoint.zero_states import MASTER as THEIR_MASTER
from ballast.errors import BadArgument
from ballast.torch.kind import MASTER, Kind
from ballast.torch.load import State, TensorState
from ballast.torch.manifest import Entry

# DeepSpeed's own Adagrad calls its sums so.
_OTHER_NAMES = {"sum": "exp_avg_sq"}


def is_universal(path: str) -> bool:
    """Whether the directory is a universal checkpoint, or the folder of one of its tags."""
    return os.path.isfile(os.path.join(path, LATEST)) or os.path.isdir(os.path.join(path, FOLDER))


def state_of_universal(
    path: str, entries: list[Entry], kind: Kind, options: dict[str, float]
) -> State:
    """The checkpoint's state of the parameters, checked; they are found by their names.

    Every parameter of `entries` has to be there; others are left. Hyper-parameters stay. Raises
    BadArgument naming file and parameter.
    """
    states = _open(path)
    arrays = kind.arrays(options)
    found: dict[int, TensorState] = {}
    for entry in entries:
        if not entry.named:
            raise BadArgument(
                "load_export(): files are read by names; build the optimizer from "
                "model.named_parameters() or pass model="
            )
        name = next((name for name in (entry.name, *entry.aliases) if name in states), None)
        if name is None:
            raise BadArgument(f"load_export(): {path} has no parameter {entry.name!r}")
        found[id(entry.param)] = _tensor_state(states[name], arrays, entry, path)
    return State(arrays, found, [], [], kind.initial_values(options))


def _open(path: str) -> Mapping[str, NamedState]:
    if os.path.isfile(os.path.join(path, LATEST)):
        return load_universal(path)
    root, tag = os.path.split(os.path.abspath(path))
    return load_universal(root, tag)


def _tensor_state(
    saved: NamedState, keys: tuple[str, ...], entry: Entry, path: str
) -> TensorState:
    where = f"load_export(): parameter {entry.name!r} of {path}"
    theirs = dict(saved.arrays)
    arrays = {MASTER: theirs.pop(THEIR_MASTER)}
    for key in keys[1:] if theirs else ():
        name = key if key in theirs else _OTHER_NAMES.get(key, key)
        if name not in theirs:
            raise BadArgument(
                f"{where} has {', '.join(theirs)} and no {key}: it is of another optimizer"
            )
        arrays[key] = theirs[name]
    for key, value in arrays.items():
        if value.shape != entry.shape:
            shapes = f"{tuple(value.shape)}; the parameter's is {tuple(entry.shape)}"
            raise BadArgument(f"{where}: {key} has shape {shapes}")
    return TensorState(saved.step or 0, {k: _whole(v) for k, v in arrays.items()})


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.to(dtype=torch.float32, device="cpu").contiguous()
