"""Addresses of gradients and weights for one call, with row-major copies where torch's differ.

Comes from: ballast.torch.membership, .rounds. Goes to: ballast.session. Contiguous tensors are lent
as they are (no copy); strided ones travel through a contiguous twin, kept for the next round. Here
and in the modules next to it every new tensor names its device: torch.set_default_device() may have
named another one.
"""

from __future__ import annotations

import torch

from ballast.errors import BadArgument, Unsupported
from ballast.torch.manifest import Entry

# Stands in for tensors without elements: torch's address for them is 0, which means "no gradient".
_EMPTY = torch.zeros(64, dtype=torch.uint8, device="cpu")


def weight_address(entry: Entry) -> int:
    """Memory that holds, and receives, the weight as a contiguous row-major array.

    Raises Unsupported when the parameter has become another tensor than the one in the job, for
    example by model.half() after the first step().
    """
    p = entry.param
    if p.dtype != entry.dtype or p.shape != entry.shape or p.device != entry.device:
        raise Unsupported(
            f"parameter {entry.name!r} is now {p.dtype} {tuple(p.shape)} on {p.device} but joined "
            f"the job as {entry.dtype} {tuple(entry.shape)} on {entry.device}; convert or move the "
            "model before the first step()"
        )
    if p.numel() == 0:
        return _EMPTY.data_ptr()
    if p.is_contiguous():
        entry.weight_copy = None
        return p.data_ptr()
    if entry.weight_copy is None:
        entry.weight_copy = p.detach().clone(memory_format=torch.contiguous_format)
        entry.copied_up += p.nbytes
    return entry.weight_copy.data_ptr()


def plane_address(bits: torch.Tensor | None) -> int:
    """Memory of a plane of the state (ballast.torch.load.planes), 0 where a tensor has none."""
    if bits is None:
        return 0
    return bits.data_ptr() if bits.numel() else _EMPTY.data_ptr()


def edited_weight_address(entry: Entry) -> int:
    """As weight_address, with the parameter's present values in that memory."""
    address = weight_address(entry)
    if entry.weight_copy is not None:
        entry.weight_copy.copy_(entry.param.detach())
        entry.copied_up += entry.weight_copy.nbytes
    return address


def weight_bits(entry: Entry) -> torch.Tensor:
    """A copy of the bits in the memory that weight_address() names, flat, as integers."""
    held = entry.param if entry.weight_copy is None else entry.weight_copy
    integers = torch.int32 if held.element_size() == 4 else torch.int16
    return held.detach().reshape(-1).view(integers).clone()


def _copy_back(entry: Entry) -> None:
    """Moves a received weight from its contiguous twin into the parameter, if it has one."""
    if entry.weight_copy is not None:
        entry.param.detach().copy_(entry.weight_copy)
        entry.copied_down += entry.weight_copy.nbytes


def dense_gradient(entry: Entry) -> torch.Tensor | None:
    """The parameter's gradient, of its shape and of a floating dtype; None when there is none.

    That may be another one than the parameter's (Tensor.grad_dtype). Raises Unsupported or
    BadArgument naming the parameter when the gradient is sparse, on another device, of another
    shape or not floating.
    """
    p, grad = entry.param, entry.param.grad
    if grad is None:
        return None
    if grad.layout is not torch.strided:
        raise Unsupported(
            f"the gradient of parameter {entry.name!r} has layout {grad.layout}; sparse gradients "
            "are not supported (nn.Embedding: sparse=False)"
        )
    if not grad.is_floating_point() or grad.device != p.device or grad.shape != p.shape:
        raise BadArgument(
            f"the gradient of parameter {entry.name!r} is {grad.dtype} {tuple(grad.shape)} on "
            f"{grad.device} but the parameter is {p.dtype} {tuple(p.shape)} on {p.device}"
        )
    return grad


def gradient(entry: Entry) -> tuple[int, torch.Tensor | None]:
    """(address or 0, owner of the memory) of the parameter's gradient, contiguous.

    A gradient of another dtype is rounded once to the parameter's, the dtype on the wire: to
    nearest, ties to even. An fp32 sum of micro-batches is rounded the same way. Raises as
    dense_gradient().
    """
    grad = dense_gradient(entry)
    if grad is None:
        return 0, None
    as_it_is = grad.dtype == entry.dtype and grad.is_contiguous() and not grad.is_neg()
    if grad.numel() and as_it_is:
        return grad.data_ptr(), grad
    return copied_gradient(entry, grad)


def copied_gradient(entry: Entry, values: torch.Tensor) -> tuple[int, torch.Tensor]:
    """(address, owner) of a contiguous copy of `values` in the tensor's dtype in the job.

    values: of the parameter's shape; rounded to nearest, ties to even. The memory of the copy is
    kept for the next round.
    """
    if values.numel() == 0:
        return _EMPTY.data_ptr(), _EMPTY
    if entry.grad_copy is None:
        entry.grad_copy = torch.empty(entry.shape, dtype=entry.dtype, device=entry.device)
    entry.grad_copy.copy_(values.detach())
    entry.copied_up += entry.grad_copy.nbytes
    return entry.grad_copy.data_ptr(), entry.grad_copy


def received(entries: list[Entry]) -> None:
    """Completes the receipt of these weights: moves twins back, and remembers the received values.

    Tells autograd that the parameters were written outside torch.
    """
    for entry in entries:
        _copy_back(entry)
    torch.autograd.graph.increment_version([e.param for e in entries])
    for entry in entries:
        entry.agree()
