"""Optimizer state into a running job, bit for bit: what load_export() takes, checks and sends.

Comes from: ballast.torch.service_optimizer. Goes to: ballast.torch.rounds, a round per plane.
A plane is the part of one fp32 array that fits the tensor's dtype: all of it for fp32 parameters,
the high or the low 16 bits of each element for bf16 and fp16 ones. Another kind of source is added
in state_of().
"""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import hashlib
import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ballast.errors import BadArgument
from ballast.torch import matching
from ballast.torch.kind import MASTER, Kind
from ballast.torch.manifest import Entry
from ballast.torch.naming import Naming

STEP_MAX = 2**53


@dataclasses.dataclass
class TensorState:
    """A parameter's new state.

    arrays: by name, contiguous fp32 CPU tensors of its shape; arrays not given do not exist.
    """

    step: int = 0
    arrays: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Receiver:
    """The optimizer for which a source is read.

    param_groups: torch's. entries: the parameters that get state. naming: their names.
    options: of the kind, fixed for the job.
    """

    param_groups: list[dict[str, Any]]
    entries: list[Entry]
    naming: Naming
    kind: Kind
    options: dict[str, float]

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of the state's arrays."""
        return self.kind.arrays(self.options)


@dataclasses.dataclass
class State:
    """A checked source: the new state of each parameter, by id(), and of each of torch's groups.

    arrays: the names of the job's state arrays, in the service's order.
    frozen: parameters not in the job, each with its value. initial: the first value of the
    elements, for arrays that do not begin at 0. schedule_index: the position of the job's schedule
    from then on;
    None: it stays.
    """

    arrays: tuple[str, ...]
    tensors: dict[int, TensorState]
    groups: list[dict[str, Any]]
    frozen: list[tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=list)
    initial: dict[str, float] = dataclasses.field(default_factory=dict)
    schedule_index: int | None = None

    def of(self, entry: Entry) -> TensorState:
        return self.tensors.get(id(entry.param)) or TensorState()

    def value(self, entry: Entry, key: str) -> torch.Tensor | None:
        """The new value of a parameter's array `key`; None: zeros."""
        value, initial = self.of(entry).arrays.get(key), self.initial.get(key)
        if value is None and initial:
            return torch.full(entry.shape, initial, dtype=torch.float32, device="cpu")
        return value

    def fingerprint(self, entries: list[Entry]) -> bytes:
        """16 bytes that tell one source from another, of its state for `entries`."""
        known = hashlib.blake2b(digest_size=16)
        for entry in entries:
            mine = self.of(entry)
            arrays = [mine.arrays.get(key) for key in self.arrays]
            sums = [None if a is None else _crc32(a) for a in arrays]
            known.update(repr((entry.name, mine.step, sums)).encode())
        if self.schedule_index is not None:
            known.update(f"schedule {self.schedule_index}".encode())
        return known.digest()

    def keep_weights(self, entries: list[Entry]) -> None:
        """Takes the parameters' present values, widened, where the source has no masters."""
        for entry in entries:
            mine = self.tensors.setdefault(id(entry.param), TensorState())
            if MASTER not in mine.arrays:
                master = torch.empty(entry.shape, dtype=torch.float32, device="cpu")
                mine.arrays[MASTER] = master.copy_(entry.param.detach())

    def put_weights(self, entries: list[Entry]) -> None:
        """Gives the parameters the source's weights, for a job that begins with them."""
        for entry in entries:
            master = self.of(entry).arrays.get(MASTER)
            if master is not None:
                entry.param.copy_(master)

    def put_frozen(self) -> None:
        for parameter, value in self.frozen:
            parameter.copy_(value)

    def apply_groups(self, param_groups: list[dict[str, Any]]) -> None:
        """Gives opt.param_groups the source's hyper-parameters."""
        for group, saved in zip(param_groups, self.groups):
            group.update(copy.deepcopy(saved))


def state_of(source: Any, into: Receiver) -> State:
    """Everything that `source` says of the receiver's entries, checked.

    source: a dict as export_state(), or state_dict() of the kind in torch.optim, gives it. Nothing
    is read of other parameters. Raises BadArgument, or Unsupported for options this version lacks;
    both name the parameter or group.
    """
    kind, arrays = into.kind, into.arrays
    if not isinstance(source, Mapping) or "state" not in source or "param_groups" not in source:
        raise BadArgument(
            f"load_export() got a {type(source).__name__}; it takes a dict with \"state\" and "
            "\"param_groups\": what opt.export_state() "
            + (f"or torch.optim.{kind.name}.state_dict() returns" if kind.in_torch else "returns")
        )
    if source.get("ballast") is not None:
        raise BadArgument(
            "load_export() got what opt.state_dict() of a Ballast optimizer returns: a handle, "
            "which holds no tensors. Save opt.export_state() instead"
        )
    pairs, matched = matching.match(source, into.param_groups, into.naming)
    groups = _groups(matched, into)
    known = {id(e.param): e for e in into.entries}
    tensors: dict[int, TensorState] = {}
    for parameter, saved in pairs:
        entry = known.get(id(parameter))
        if entry is None or not saved:
            continue
        where = f"load_export(): parameter {entry.name!r}"
        known_state = kind.saved_state(saved, arrays, where)
        if known_state:
            tensors[id(parameter)] = _tensor_state(known_state, entry, kind, arrays)
    return State(arrays, tensors, groups, [], kind.initial_values(into.options))


def planes(
    state: State, entries: list[Entry]
) -> Iterator[tuple[int, bool, list[torch.Tensor | None], bool]]:
    """(array's number, whether its low half, bits per entry, whether it is the last plane).

    All that `state` is made of.

    Bits are contiguous tensors of the entry's element size; None where it has no such plane. Those
    of fp32 entries are the state's own memory.
    """
    halves = any(e.dtype != torch.float32 for e in entries)
    for array, key in enumerate(state.arrays):
        values = [state.value(e, key) for e in entries]
        for low in (False, True) if halves else (False,):
            bits = [_plane(value, e, low) for e, value in zip(entries, values)]
            yield (
                array,
                low,
                bits,
                array == len(state.arrays) - 1 and low == halves,
            )


def _crc32(values: torch.Tensor) -> int:
    if not values.numel():
        return 0
    return zlib.crc32((ctypes.c_char * values.nbytes).from_address(values.data_ptr()))


def _plane(value: torch.Tensor | None, entry: Entry, low: bool) -> torch.Tensor | None:
    if entry.dtype == torch.float32:
        if low:
            return None
        return _zeros(entry, torch.float32) if value is None else value
    if value is None:
        return _zeros(entry, torch.int16)
    return value.reshape(-1).view(torch.int16).view(-1, 2)[:, 0 if low else 1].contiguous()


def _zeros(entry: Entry, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(entry.shape, dtype=dtype, device="cpu")


def _groups(matched: list[tuple[int, dict[str, Any]]], into: Receiver) -> list[dict[str, Any]]:
    # The hyper-parameters of each of our groups, after checking the result.
    kind, groups = into.kind, []
    for g, ((theirs, values), ours) in enumerate(zip(matched, into.param_groups)):
        groups.append(values)
        if theirs < 0:
            continue
        where = f"load_export(): param_groups[{theirs}] of the source"
        kind.refuse_options(values, where)
        kind.refuse_other_kind(values, ours, where)
        kind.check_ranges(kind.read({**ours, **values}, g), f"{where}: ")
        kind.refuse_changes([{**ours, **values}], into.options, where)
    return groups


def _tensor_state(
    saved: Mapping[str, Any], entry: Entry, kind: Kind, keys: tuple[str, ...]
) -> TensorState:
    where = f"load_export(): parameter {entry.name!r}"
    if set(saved) == {MASTER}:  # Weights alone fit every kind.
        return TensorState(arrays={MASTER: _array(saved[MASTER], f"{where}: {MASTER}", entry)})
    needed = ("step", *kind.needed(keys))
    missing = [key for key in needed if saved.get(key) is None]
    if missing:
        raise BadArgument(
            f"{where} has {', '.join(map(repr, saved)) or 'nothing'} in the source, but no "
            f"{' and no '.join(map(repr, missing))}; it takes the state of {kind.name}"
        )
    kind.refuse_more_arrays((k for k in saved if saved[k] is not None), keys, where)
    arrays = {
        key: _array(saved[key], f"{where}: {key}", entry)
        for key in keys
        if saved.get(key) is not None  # An absent master, or an array that may lack.
    }
    return TensorState(_step(saved["step"], where), arrays)


def _step(value: Any, where: str) -> int:
    what = repr(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    whole = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not whole or not math.isfinite(value) or value != int(value) or not 0 <= value <= STEP_MAX:
        raise BadArgument(f"{where}: step is {what}; it must be a whole number from 0 to 2**53")
    return int(value)


def _array(value: Any, where: str, entry: Entry) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise BadArgument(f"{where} is a {type(value).__name__}; it must be a tensor")
    wrapped = type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if wrapped or value.is_meta:  # A DTensor, for one, whose memory has a part of the values.
        what = type(value).__name__ if wrapped else "tensor without values (device meta)"
        raise BadArgument(f"{where} is a {what}; give a plain tensor, as its full_tensor()")
    if value.shape != entry.shape or value.layout is not torch.strided:
        raise BadArgument(
            f"{where} has shape {tuple(value.shape)} ({value.layout}); the parameter's is "
            f"{tuple(entry.shape)}"
        )
    if value.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise BadArgument(
            f"{where} is {value.dtype}; it must be float32, or bfloat16 or float16, which become "
            "float32 exactly"
        )
    widened = value.detach().to(device="cpu", dtype=torch.float32)
    return widened.resolve_neg().contiguous()
