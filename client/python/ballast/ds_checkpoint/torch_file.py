"""Files that torch.save wrote: their values, with tensors read on demand.

Comes from: ballast.ds_checkpoint.zero and universal. Goes to: ballast.ds_checkpoint.archive (bytes)
and unpickle (values). Thread safety: thread-compatible.

torch.load is not used: no class is imported and no code of the file runs. A tensor of the file is a
FileTensor until read() makes a torch.Tensor of it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections import OrderedDict
from typing import Any

import torch

from ballast.ds_checkpoint.archive import Archive, Member
from ballast.ds_checkpoint.errors import CheckpointError, shown
from ballast.ds_checkpoint.unpickle import PICKLE_BYTES_MAX, Build, Name, Names, Refused, unpickle

_DTYPES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
_STORAGES = {f"torch.{name}Storage": dtype for name, dtype in _DTYPES.items()}
_DTYPE_NAMES = {str(dtype): dtype for dtype in _DTYPES.values()}
_DIMENSIONS_MAX = 64


@dataclasses.dataclass(frozen=True)
class _Storage:
    """A storage of the file: `elements` of `dtype` in one member."""

    member: Member
    dtype: torch.dtype
    elements: int


@dataclasses.dataclass(frozen=True)
class FileTensor:
    """A tensor still in its file. Its elements lie inside its storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def read(self) -> torch.Tensor:
        """A new contiguous CPU tensor. CheckpointError where the file is damaged."""
        span = _span(self.shape, self.stride)
        flat = self._elements(self.offset, span)
        return flat.as_strided(self.shape, self.stride).contiguous() if span else _empty(self)

    def read_flat(self, start: int, count: int) -> torch.Tensor:
        """Elements [start, start + count) of a tensor of one dimension, as a new CPU tensor.

        The caller has compared the range with `numel`.
        """
        assert len(self.shape) == 1 and 0 <= start and start + count <= self.numel
        if self.stride != (1,):
            return self.read()[start : start + count]
        return self._elements(self.offset + start, count)

    def _elements(self, start: int, count: int) -> torch.Tensor:
        width = self.dtype.itemsize
        data = self.storage.member.read(start * width, count * width)
        if count == 0:
            return torch.empty(0, dtype=self.dtype)
        return torch.frombuffer(data, dtype=self.dtype)


def _empty(tensor: FileTensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def _span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements of the storage from a tensor's first to its last; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride))


def load(path: str | os.PathLike[str], names: Names | None = None) -> Any:
    """The value saved in a file of torch.save, with FileTensors in place of tensors.

    names: names allowed in the pickle in addition to torch's own. Raises CheckpointError.
    """
    archive = Archive(path)
    if archive.has("byteorder"):
        order = archive.member("byteorder")
        if bytes(order.read(0, min(order.size, 16))) != b"little":
            raise CheckpointError(path, "was written by a big-endian machine")
    pickled = archive.member("data.pkl")
    if pickled.size > PICKLE_BYTES_MAX:
        raise CheckpointError(
            path, f"has a pickle of {pickled.size} bytes; the limit is {PICKLE_BYTES_MAX}"
        )
    known = {**_TORCH_NAMES, **(names or {})}
    storages = functools.partial(_storage, archive)
    try:
        return unpickle(bytes(pickled.read(0, pickled.size)), known, storages)
    except Refused as refused:
        raise CheckpointError(path, str(refused)) from None


def _storage(archive: Archive, identity: Any) -> _Storage:
    """The storage of a persistent id: ("storage", class, key, device, elements)."""
    if not (isinstance(identity, tuple) and len(identity) == 5 and identity[0] == "storage"):
        raise Refused("the pickle has a persistent id that is no storage of torch")
    _, kind, key, _, elements = identity
    dtype = _STORAGES.get(kind.name) if isinstance(kind, Name) else None
    if dtype is None or not isinstance(key, str) or not _count(elements):
        raise Refused("the pickle has a storage whose class, key or size is none of torch's")
    member = archive.member(f"data/{key}")
    if member.size != elements * dtype.itemsize:
        raise Refused(
            f"storage {shown(key)} of {elements} {shown(str(dtype))} has {member.size} bytes"
        )
    return _Storage(member, dtype, elements)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _counts(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_count, value))


def _tensor(arguments: tuple[Any, ...]) -> FileTensor:
    """torch._utils._rebuild_tensor_v2(storage, offset, shape, stride, requires_grad, hooks)."""
    if len(arguments) not in (6, 7) or not isinstance(arguments[0], _Storage):
        raise Refused("the pickle has a tensor without a storage")
    storage, offset, shape, stride = arguments[:4]
    if not (_count(offset) and _counts(shape) and _counts(stride) and len(shape) == len(stride)):
        raise Refused("the pickle has a tensor whose shape or stride is no list of sizes")
    if len(shape) > _DIMENSIONS_MAX or math.prod(shape) > storage.elements:
        raise Refused(
            f"the pickle has a tensor that is larger than its storage of {storage.elements}"
        )
    if offset + _span(shape, stride) > storage.elements:
        raise Refused("the pickle has a tensor that reaches past the end of its storage")
    return FileTensor(storage, offset, tuple(shape), tuple(stride))


def _parameter(arguments: tuple[Any, ...]) -> FileTensor:
    if len(arguments) != 3 or not isinstance(arguments[0], FileTensor):
        raise Refused("the pickle has a parameter without a tensor")
    return arguments[0]


def _with_fields(arguments: tuple[Any, ...]) -> FileTensor:
    """torch._tensor._rebuild_from_type_v2(function, class, its arguments, fields): the tensor."""
    build = None
    if len(arguments) == 4 and isinstance(arguments[0], Name) and isinstance(arguments[2], tuple):
        build = _TENSORS.get(arguments[0].name)
    if build is None:
        raise Refused("the pickle has a tensor of a class that is none of torch's")
    return build(arguments[2])


_TENSORS = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
}


def _ordered(arguments: tuple[Any, ...]) -> OrderedDict[Any, Any]:
    if arguments:
        raise Refused("the pickle makes an OrderedDict of something; torch.save does not")
    return OrderedDict()


def _size(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    if len(arguments) != 1 or not _counts(arguments[0]) or len(arguments[0]) > _DIMENSIONS_MAX:
        raise Refused("the pickle has a torch.Size that is no tuple of sizes")
    return arguments[0]


_TORCH_NAMES: dict[str, Build | None] = {
    "collections.OrderedDict": _ordered,
    "torch.Size": _size,
    "torch._tensor._rebuild_from_type_v2": _with_fields,
    **_TENSORS,
    **dict.fromkeys(("torch.Tensor", "torch.nn.parameter.Parameter")),
    **dict.fromkeys(_STORAGES),
    **dict.fromkeys(_DTYPE_NAMES),
}
