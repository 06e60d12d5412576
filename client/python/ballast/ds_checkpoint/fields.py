"""Fields of a checkpoint file's contents, compared with their required kind.

Comes from: ballast.ds_checkpoint.zero and universal. Thread safety: pure functions.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

from ballast.ds_checkpoint.errors import CheckpointError, shown
from ballast.ds_checkpoint.torch_file import FileTensor
from ballast.ds_checkpoint.unpickle import Record

_T = TypeVar("_T")

NAME_BYTES_MAX = 4096
_ELEMENTS_MAX = 1 << 62
# Where a safetensors file has its metadata.
_RESERVED = "__metadata__"


def field(path: str, values: Any, key: Any, kind: type[_T]) -> _T:
    """values[key], which must be there and be a `kind`. CheckpointError otherwise."""
    if not isinstance(values, dict) or key not in values:
        raise CheckpointError(path, f"has no {shown(key)}")
    return of_kind(path, shown(key), values[key], kind)


def of_kind(path: str, what: str, value: Any, kind: type[_T]) -> _T:
    """`value`, which must be a `kind`; a bool is no int. CheckpointError otherwise."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    wanted = "tensor" if kind is FileTensor else kind.__name__
    raise CheckpointError(path, f"{what} is {shown(value)}; expected is a {wanted}")


def number(value: Any) -> int | None:
    """A whole number: itself, that of an enum's Record, or a tensor's only element."""
    if isinstance(value, Record) and len(value.arguments) == 1:
        value = value.arguments[0]
    if isinstance(value, FileTensor) and value.numel == 1:
        value = value.read().item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int else None


def parameter_name(path: str, name: Any) -> str:
    """A tensor's name that a safetensors file and a folder may have."""
    text = of_kind(path, "the name of a tensor", name, str)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= NAME_BYTES_MAX or text == _RESERVED or "\0" in text:
        raise CheckpointError(
            path, f"has a tensor {shown(text)}; names have 1 to {NAME_BYTES_MAX} bytes of UTF-8"
        )
    return text


def shape_of(path: str, name: str, value: Any) -> tuple[int, ...]:
    """A shape: a tuple or list of sizes."""
    sizes = tuple(value) if isinstance(value, (tuple, list)) else None
    if sizes is None or not all(type(size) is int and size >= 0 for size in sizes):
        raise CheckpointError(path, f"the shape of {shown(name)} is no list of sizes")
    if math.prod(sizes) > _ELEMENTS_MAX:
        raise CheckpointError(path, f"the shape of {shown(name)} has too many elements")
    return sizes


def vector(path: str, what: str, value: Any) -> FileTensor:
    """A tensor of one dimension and a float dtype."""
    tensor = of_kind(path, what, value, FileTensor)
    if len(tensor.shape) != 1 or not tensor.dtype.is_floating_point:
        raise CheckpointError(path, f"{what} is no vector of floats")
    return tensor
