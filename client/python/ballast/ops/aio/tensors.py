"""Which tensors a file operation takes, and where their bytes are.

Comes from: ballast.ops.aio.handle. Goes to: torch. Thread safety: pure functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ballast.errors import BadArgument, Unsupported
from ballast.ops.aio.errors import WrongType


class Bytes(NamedTuple):
    """Where a tensor's elements are, one after the other."""

    address: int
    count: int

    def within(self, other: Bytes) -> bool:
        """Whether all bytes belong to `other`."""
        end, other_end = self.address + self.count, other.address + other.count
        return other.address <= self.address and end <= other_end


def bytes_of(buffer: Any, name: str = "buffer") -> Bytes:
    """The bytes of a CPU tensor of any dtype and shape.

    Raises WrongType for anything but a tensor, Unsupported for a tensor elsewhere than in this
    machine's memory, BadArgument for one whose elements do not lie one after the other.
    """
    if not isinstance(buffer, torch.Tensor):
        raise WrongType(f"{name} is {type(buffer).__name__}; give a torch.Tensor")
    if buffer.device.type != "cpu":
        raise Unsupported(
            f"{name} is a {buffer.device.type.upper()} tensor ({buffer.device}), which aio_handle "
            "does not read or write yet; use a CPU tensor, such as new_cpu_locked_tensor() gives, "
            "and copy_() between the two"
        )
    if buffer.layout != torch.strided or buffer.is_conj() or buffer.is_neg():
        raise BadArgument(f"{name} is no plain dense tensor ({_shown(buffer)}); give a .clone()")
    if not buffer.is_contiguous():
        raise BadArgument(
            f"{name} is not contiguous ({_shown(buffer)}): its elements do not lie one after the "
            "other; write tensor.contiguous(), read into a contiguous tensor and copy_()"
        )
    return Bytes(buffer.data_ptr(), buffer.nbytes)


def _shown(buffer: torch.Tensor) -> str:
    if buffer.layout != torch.strided:
        return str(buffer.layout)
    return f"shape {tuple(buffer.shape)}, strides {buffer.stride()}"
