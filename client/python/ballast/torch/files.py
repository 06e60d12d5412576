"""Safetensors files on this machine, as a source of weights and optimizer state for load_export().

Comes from: ballast.torch.service_optimizer. Goes to: ballast.torch.load. A source is one
file, or a directory: an export of Ballast (weights, and in "optimizer" the servers' state), or
weights as model hubs have them, with or without an index; or a universal checkpoint
(ballast.torch.universal). Files are untrusted: the extension checks every header before it takes
memory, and nothing is unpickled.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from ballast import backend
from ballast.errors import BadArgument
from ballast.torch.job_file import service_kind_of
from ballast.torch.kind import MASTER, Kind
from ballast.torch.load import STEP_MAX, Receiver, State, TensorState, state_of
from ballast.torch.naming import Naming
from ballast.torch.universal import is_universal, state_of_universal

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_INDEX = "model.safetensors.index.json"
_STATE = "optimizer"
# Keys of a file's metadata that do not give another name of a tensor: the framework, and the
# entries equal in all files of one export.
_FORMAT = "format"
_ORIGIN = {"ballast.round": "round", "ballast.snapshot": "snapshot"}


class _Tensors:
    """The tensors of several files by name; names of tied weights, too."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, Any, int, str, tuple[int, ...]]] = {}
        self._aliases: dict[str, str] = {}
        self.origin: dict[str, tuple[str, str]] = {}  # with the file that says it

    def add(self, path: str) -> None:
        if os.path.islink(path) and not os.path.exists(path):
            raise BadArgument(
                f"load_export(): {path} is there, but what it links to is not; put the file itself "
                "there, or mend the link"
            )
        if not os.path.isfile(path):
            raise BadArgument(f"load_export(): {path} is no file")
        opened = backend.core().SafetensorsFile(path)
        for i, (name, dtype, shape) in enumerate(opened.tensors):
            if name in self._places:
                raise BadArgument(
                    f"load_export(): tensor {name!r} is in {path} and in {self._places[name][0]}"
                )
            self._places[name] = (path, opened, i, dtype, tuple(shape))
        names = dict(opened.metadata)
        names.pop(_FORMAT, None)
        self.compare({key: (names.pop(key), path) for key in _ORIGIN if key in names})
        self._aliases.update(names)

    def compare(self, said: dict[str, tuple[str, str]]) -> None:
        """BadArgument when a file says it is of something else than those before it."""
        for key, (value, path) in said.items():
            first, where = self.origin.setdefault(key, (value, path))
            if value != first:
                raise BadArgument(
                    f"load_export(): {path} is of {_ORIGIN[key]} {value!r} and {where} of "
                    f"{_ORIGIN[key]} {first!r}; put the files of one export together, or export "
                    "again"
                )

    def name_of(self, names: tuple[str, ...]) -> str | None:
        """The first of `names` in the source, by itself or as another name of a tensor there."""
        for name in names:
            if name in self._places:
                return name
            if self._aliases.get(name) in self._places:
                return self._aliases[name]
        return None

    def read(self, name: str, shape: torch.Size) -> torch.Tensor:
        """A new fp32 tensor. BadArgument unless it is there with that shape and a float dtype."""
        if name not in self._places:
            raise BadArgument(f"load_export(): there is no tensor {name!r} in the files")
        path, opened, i, dtype, theirs = self._places[name]
        if theirs != tuple(shape) or dtype not in _DTYPES:
            raise BadArgument(
                f"load_export(): tensor {name!r} of {path} is {dtype} of shape {theirs}; expected "
                f"are F32, BF16 or F16 and {tuple(shape)}"
            )
        value = torch.empty(shape, dtype=_DTYPES[dtype], device="cpu")
        opened.read(i, value.data_ptr())
        return value.to(torch.float32)

    def kinds_by_name(self) -> dict[str, set[str]]:
        """Of optimizer state: what there is of each parameter, such as "step" and "exp_avg"."""
        kinds: dict[str, set[str]] = {}
        for full in self._places:
            kind, _, name = full.partition(".")
            kinds.setdefault(name, set()).add(kind)
        return kinds

    def read_step(self, name: str) -> int:
        path, opened, i, dtype, shape = self._places.get(name, ("", None, 0, "", ()))
        if not path:
            raise BadArgument(f"load_export(): there is no tensor {name!r} in the files")
        value = torch.full((), -1, dtype=torch.int64, device="cpu")
        if dtype == "I64" and shape == ():
            opened.read(i, value.data_ptr())
        step = int(value)
        if not 0 <= step <= STEP_MAX:
            raise BadArgument(
                f"load_export(): {name!r} must be one I64 from 0 to 2**53 in {path}"
            )
        return step


def state_of_source(source: Any, into: Receiver) -> State:
    """What load_export() takes, checked: a dict, or a path. Raises as state_of() and
    state_of_files(), and BadArgument for a path of bytes."""
    path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
    if isinstance(source, bytes) or isinstance(path, bytes):
        raise BadArgument(
            f"load_export() got the path {path or source!r} as bytes; give it as str: "
            "os.fsdecode(path)"
        )
    if path is None:
        return state_of(source, into)
    return state_of_files(path, into)


def state_of_files(path: str, into: Receiver) -> State:
    """The files' state of the parameters, checked; parameters are found by their names.

    Every entry of the receiver must be in the files; tensors of other names are ignored. A frozen
    parameter in the files gets its value, too. Without optimizer state, arrays begin as in a new
    job, with no steps taken. Raises BadArgument naming file and tensor, also for state of another
    kind and for arrays that the job lacks.
    """
    kind, arrays = into.kind, into.arrays
    if is_universal(path):
        return state_of_universal(path, into.entries, kind, into.options)
    tensors, state = _open(path)
    there = {} if state is None else state.kinds_by_name()
    if state is not None:
        _refuse_other_kind(path, kind)
    found: dict[int, TensorState] = {}
    for entry in into.entries:
        if not entry.named:
            raise BadArgument(
                "load_export(): files are read by names; build the optimizer from "
                "model.named_parameters() or pass model="
            )
        name = tensors.name_of((entry.name, *entry.aliases))
        if name is None:
            raise BadArgument(f"load_export(): {path} has no tensor {entry.name!r}")
        where = f"load_export(): the optimizer state of {name!r} in {path}"
        kind.refuse_more_arrays(there.get(name, ()), arrays, where, _only_weights(path))
        values = _tensor_state(tensors, state, name, entry.shape, kind, arrays)
        found[id(entry.param)] = values
    frozen = _frozen(tensors, into.param_groups, found, into.naming)
    return State(arrays, found, [], frozen, kind.initial_values(into.options))


def _tensor_state(
    tensors: _Tensors,
    state: _Tensors | None,
    name: str,
    shape: torch.Size,
    kind: Kind,
    keys: tuple[str, ...],
) -> TensorState:
    if state is None:
        return TensorState(arrays={MASTER: tensors.read(name, shape)})
    step = state.read_step(f"step.{name}")
    master = state.name_of((f"{MASTER}.{name}",))
    arrays = {MASTER: state.read(master, shape) if master else tensors.read(name, shape)}
    needed = kind.needed(keys)
    for key in keys:
        at = f"{key}.{name}"
        if key in needed or (key != MASTER and state.name_of((at,))):
            arrays[key] = state.read(at, shape)
    saved = kind.saved_state({"step": step, **arrays}, keys, f"load_export(): {name!r}")
    return TensorState(int(saved["step"]), arrays)


def _refuse_other_kind(path: str, kind: Kind) -> None:
    theirs = service_kind_of(path)
    if theirs not in (None, kind.service or kind.name):
        raise BadArgument(
            f"load_export(): {path} is an export of {theirs}, not of {kind.name}. Load it into an "
            f"optimizer of that kind; {_only_weights(path)}"
        )


def _only_weights(path: str) -> str:
    return f"to load the weights alone, move {os.path.join(path, _STATE)} away"


def _frozen(
    tensors: _Tensors,
    param_groups: list[dict[str, Any]],
    found: dict[int, TensorState],
    naming: Naming,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    frozen = []
    for g, group in enumerate(param_groups):
        for i, parameter in enumerate(group["params"]):
            if id(parameter) in found:
                continue
            name, aliases, named = naming.of(group, g, i)
            at = tensors.name_of((name, *aliases)) if named else None
            if at is not None:
                frozen.append((parameter, tensors.read(at, parameter.shape)))
    return frozen


def _open(path: str) -> tuple[_Tensors, _Tensors | None]:
    """Weights, and optimizer state if there is some."""
    tensors = _Tensors()
    if not os.path.isdir(path):
        tensors.add(path)
        return tensors, None
    for file in _files(path):
        tensors.add(file)
    state_path = os.path.join(path, _STATE)
    if not os.path.isdir(state_path):
        return tensors, None
    state = _Tensors()
    for file in _state_files(state_path):
        state.add(file)
    state.compare(tensors.origin)
    return tensors, state


def _state_files(path: str) -> list[str]:
    names = sorted(os.listdir(path))
    ours = [name for name in names if name.startswith("state") and name.endswith(".safetensors")]
    if not ours:
        raise BadArgument(
            f"load_export(): {path} has no state*.safetensors, so it is no optimizer state that "
            "`ballastctl export --state` has written; move it away to load the weights alone"
        )
    return [os.path.join(path, name) for name in ours]


def _files(path: str) -> list[str]:
    index = os.path.join(path, _INDEX)
    if os.path.isfile(index):
        names = sorted(set(backend.core().read_safetensors_index(index)))
    else:
        names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    if not names:
        raise BadArgument(f"load_export(): {path} has no .safetensors files")
    return [os.path.join(path, name) for name in names]
