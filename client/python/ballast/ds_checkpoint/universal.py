"""DeepSpeed's universal checkpoints, read: a folder per parameter, whatever ranks there were.

Comes from: scripts. Goes to: ballast.ds_checkpoint.torch_file. Thread safety: thread-compatible.

```
DIR/latest_universal                              text: TAG
DIR/TAG/zero/<name>/{fp32,exp_avg,exp_avg_sq}.pt  {"param": tensor}, or the tensor flat
DIR/TAG/zero/<name>/step.pt                       stages 1 and 2
DIR/TAG/zero/optimizer_state.pt                   hyper-parameters; stage 3: the step
DIR/TAG/*_model_states.pt                         shapes, counters, untrained tensors
```
Source: deepspeed/checkpoint/ds_to_universal.py and universal_checkpoint.py of 0.19.8.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ballast.ds_checkpoint import torch_file
from ballast.ds_checkpoint.errors import CheckpointError, shown
from ballast.ds_checkpoint.fields import field, number, parameter_name, shape_of
from ballast.ds_checkpoint.torch_file import FileTensor
from ballast.ds_checkpoint.zero import Zero
from ballast.ds_checkpoint.zero_files import NAMES, folder_of
from ballast.ds_checkpoint.zero_states import MASTER, OPTIMIZER

LATEST = "latest_universal"
FOLDER = "zero"
COMMON = "optimizer_state.pt"
MODELS = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")
PARAM = "param"
_STEP = "step"
_SUFFIX = ".pt"


@dataclasses.dataclass(frozen=True)
class NamedState:
    """An optimizer's state of one parameter.

    arrays: fp32 CPU tensors of the parameter's shape by name; "fp32" is the master. step: how many
    steps the parameter has taken; None where the checkpoint does not say.
    """

    arrays: dict[str, torch.Tensor]
    step: int | None = None


def load_universal(
    directory: str | os.PathLike[str], tag: str | None = None
) -> Mapping[str, NamedState]:
    """A universal checkpoint's parameters by name. Tensors are read when one is looked up.

    directory: holds `latest_universal` and the tags' folders. tag: the latest by default. Untrained
    tensors are left out where the checkpoint names the trained ones. Raises CheckpointError naming
    the file: here for a missing file, at a look-up for a damaged one.
    """
    folder = folder_of(os.fspath(directory), tag, LATEST)
    states = os.path.join(folder, FOLDER)
    if not os.path.isdir(states):
        raise CheckpointError(folder, f"has no folder {FOLDER}, so it is no universal checkpoint")
    shapes = _shapes(folder)
    if shapes is None:
        names = [entry.name for entry in os.scandir(states) if entry.is_dir()]
        shapes = dict.fromkeys(sorted(names))
    for name in shapes:
        if not os.path.isfile(os.path.join(states, _component(states, name), MASTER + _SUFFIX)):
            raise CheckpointError(states, f"has no {MASTER}{_SUFFIX} of {shown(name)}")
    return _Universal(states, shapes, _common_step(states))


def zero_states(zero: Zero) -> Mapping[str, NamedState]:
    """A ZeRO checkpoint's trained parameters by name, in the same form; read at each look-up."""
    return _ZeroStates(zero)


class _Universal(Mapping[str, NamedState]):
    def __init__(
        self, folder: str, shapes: Mapping[str, tuple[int, ...] | None], step: int | None
    ) -> None:
        self._folder = folder
        self._shapes = shapes
        self._step = step

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, name: str) -> NamedState:
        shape = self._shapes[name]
        folder = os.path.join(self._folder, name)
        files = sorted(file for file in os.listdir(folder) if file.endswith(_SUFFIX))
        keys = [file.removesuffix(_SUFFIX) for file in files]
        step = self._step
        if _STEP in keys:
            path = os.path.join(folder, _STEP + _SUFFIX)
            step = _step(path, torch_file.load(path, NAMES))
            keys.remove(_STEP)
        keys.sort(key=lambda key: (key != MASTER, key))
        arrays = {key: _array(os.path.join(folder, key + _SUFFIX), shape) for key in keys}
        if len({array.shape for array in arrays.values()}) != 1:
            raise CheckpointError(folder, "has arrays of several shapes")
        return NamedState(arrays, step if len(arrays) > 1 else None)


class _ZeroStates(Mapping[str, NamedState]):
    def __init__(self, zero: Zero) -> None:
        self._zero = zero

    def __iter__(self) -> Iterator[str]:
        return iter(self._zero.shapes)

    def __len__(self) -> int:
        return len(self._zero.shapes)

    def __getitem__(self, name: str) -> NamedState:
        arrays = {array: self._zero.read(name, array) for array in self._zero.arrays}
        return NamedState(arrays, self._zero.step(name))


def _component(path: str, name: Any) -> str:
    """A parameter's name as a folder's. CheckpointError for one that leads elsewhere."""
    text = parameter_name(path, name)
    if "/" in text or text in (".", ".."):
        raise CheckpointError(path, f"has a parameter {shown(text)}, which is no folder's name")
    return text


def _shapes(folder: str) -> dict[str, tuple[int, ...] | None] | None:
    """Shapes of trained parameters, from the model states; None without such a file."""
    for file in MODELS:
        path = os.path.join(folder, file)
        if not os.path.isfile(path):
            continue
        groups = field(path, torch_file.load(path, NAMES), "param_shapes", list)
        found: dict[str, tuple[int, ...] | None] = {}
        for group in groups:
            if not isinstance(group, dict):
                raise CheckpointError(path, "param_shapes is no list of dicts")
            for name, shape in group.items():
                found[_component(path, name)] = shape_of(path, name, shape)
        return found
    return None


def _common_step(states: str) -> int | None:
    """The step of stage 3, which is one for all parameters."""
    path = os.path.join(states, COMMON)
    if not os.path.isfile(path):
        return None
    common = torch_file.load(path, NAMES)
    inner = common.get(OPTIMIZER) if isinstance(common, dict) else None
    groups = inner.get("state") if isinstance(inner, dict) else None
    first = groups.get(0) if isinstance(groups, dict) else None
    return number(first.get(_STEP)) if isinstance(first, dict) else None


def _step(path: str, value: Any) -> int:
    step = number(value)
    if step is None or step < 0:
        raise CheckpointError(path, "is no number of steps")
    return step


def _array(path: str, shape: tuple[int, ...] | None) -> torch.Tensor:
    value = torch_file.load(path, NAMES)
    tensor = value.get(PARAM) if isinstance(value, dict) else value
    if not isinstance(tensor, FileTensor) or not tensor.dtype.is_floating_point:
        raise CheckpointError(path, "holds no tensor of floats")
    if shape is None or tensor.shape == shape:
        return tensor.read().float()
    if tensor.numel != math.prod(shape) or len(tensor.shape) != 1:
        raise CheckpointError(path, f"has shape {tensor.shape}; the model's is {shape}")
    return tensor.read().float().reshape(shape)
