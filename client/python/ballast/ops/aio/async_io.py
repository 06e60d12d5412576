"""What AsyncIOBuilder().load() gives: the names of DeepSpeed's extension module async_io.

Comes from: ballast.ops.op_builder. Goes to: ballast.ops.aio.handle.
"""

from __future__ import annotations

import importlib

import torch

from ballast.errors import BadArgument

try:
    importlib.import_module("ballast._aio")
except ImportError as error:
    raise ImportError(
        f"ballast._aio cannot be loaded ({error}). Install libaio1, and build it with "
        "`cmake --build build/release --target ballast_python` in the Ballast checkout."
    ) from error

from ballast.ops.aio.handle import aio_handle  # noqa: E402  (only after the text above)

__all__ = ["aio_handle", "aio_read", "aio_write", "deepspeed_memcpy"]


def aio_read(
    buffer: torch.Tensor,
    filename: str,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """aio_handle.read() with queues that live for this call. Returns 0."""
    handle = aio_handle(block_size, queue_depth, single_submit, overlap_events)
    return handle.read(buffer, filename, validate)


def aio_write(
    buffer: torch.Tensor,
    filename: str,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """aio_handle.write() with queues that live for this call. Returns 0."""
    handle = aio_handle(block_size, queue_depth, single_submit, overlap_events)
    return handle.write(buffer, filename, validate)


def deepspeed_memcpy(dest: torch.Tensor, src: torch.Tensor) -> int:
    """dest.copy_(src) of tensors of one dtype and size. Returns 0."""
    if dest.dtype != src.dtype or dest.numel() != src.numel():
        raise BadArgument(
            f"deepspeed_memcpy: dest has {dest.numel()} x {dest.dtype}, src {src.numel()} x "
            f"{src.dtype}; both have to be equal"
        )
    dest.copy_(src.view_as(dest))
    return 0
