"""A safetensors file, written one tensor after the other: memory for the largest tensor is enough.

Comes from: ballast.ds_checkpoint.zero_to_fp32. Goes to: docs/formats/safetensors.md. Thread safety:
writes one file.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import torch

from ballast.ds_checkpoint.errors import CheckpointError, shown

DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
_HEADER_BYTES_MAX = 100_000_000
_ALIGNMENT = 8

# A tensor's dtype and shape.
Plan = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def write_safetensors(
    path: str,
    plan: Plan,
    tensors: Iterable[tuple[str, torch.Tensor]],
    metadata: Mapping[str, str],
) -> None:
    """Writes `path`, which appears when all of it is on the disk, or not at all.

    plan: the tensors to write, in this order. tensors: the same names in the same order, each with
    a CPU tensor of the planned dtype and shape; they are taken one at a time. Raises
    CheckpointError when the disk refuses; errors of `tensors` go through.
    """
    header = _header(path, plan, metadata)
    with _appearing(path) as file:
        file.write(struct.pack("<Q", len(header)) + header)
        names = iter(plan.items())
        for name, tensor in tensors:
            planned, (dtype, shape) = next(names)
            if (name, tensor.dtype, tuple(tensor.shape)) != (planned, dtype, shape):
                raise AssertionError(f"{name} is not what was planned")
            _write(file, tensor)
        if next(names, None) is not None:
            raise AssertionError("fewer tensors than planned")


def size_of(plan: Plan) -> int:
    """Bytes of the tensors."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in plan.values())


def _header(path: str, plan: Plan, metadata: Mapping[str, str]) -> bytes:
    values: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    at = 0
    for name, (dtype, shape) in plan.items():
        end = at + dtype.itemsize * math.prod(shape)
        values[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    if len(text) > _HEADER_BYTES_MAX:
        raise CheckpointError(path, f"would have a header above the format's {_HEADER_BYTES_MAX}")
    return text


def _write(file: BinaryIO, tensor: torch.Tensor) -> None:
    whole = tensor.contiguous()
    if whole.nbytes:
        file.write((ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()))


@contextlib.contextmanager
def _appearing(path: str) -> Iterator[BinaryIO]:
    """A file that takes the name `path` when the block ends without an exception."""
    part = f"{path}.part"
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _flush_folder(os.path.dirname(path) or ".")
    except OSError as error:
        _remove(part)
        raise CheckpointError(path, f"cannot be written: {shown(error.strerror)}") from None
    except BaseException:
        _remove(part)
        raise


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _flush_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
