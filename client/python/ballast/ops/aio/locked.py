"""Page-locked CPU tensors: file operations need no copy of their bytes.

Comes from: ballast.ops.aio.handle. Goes to: the extension module ballast._aio. All handles of a
process know all locked tensors. Thread safety: thread-safe.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from ballast import _aio
from ballast.errors import BadArgument, warn
from ballast.ops.aio.tensors import Bytes, bytes_of

_BYTES_MAX = 1 << 47  # a process has no more addresses
# Reentrant: the end of a tensor's memory may be noticed while this thread has it.
_lock = threading.RLock()
# By address; with the memory, which lives as long as a tensor looks at it.
_blocks: dict[int, tuple[Bytes, weakref.ref[Any]]] = {}
_warned = False


def new(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of `count` zeros on a page's start, known until free() or until it is gone."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    if count > _BYTES_MAX // dtype.itemsize:
        raise BadArgument(f"num_elem {count} of {dtype}; at most {_BYTES_MAX} bytes are possible")
    memory = _aio.LockedMemory(count * dtype.itemsize)
    if not memory.locked:
        _warn_unlocked()
    tensor = memory.tensor().view(dtype)
    address = memory.address
    with _lock:
        _blocks[address] = (bytes_of(tensor), weakref.ref(memory, lambda _: _forget(address)))
    return tensor


def _forget(address: int) -> None:
    with _lock:
        _blocks.pop(address, None)


def free(tensor: torch.Tensor) -> bool:
    """Gives the memory of a tensor of new() back; False for any other tensor, and the second time.

    Whatever still looks at the memory sees zeros.
    """
    with _lock:
        block, memory_of = _blocks.get(tensor.data_ptr(), (None, None))
        if block is None or memory_of is None or block.count != tensor.nbytes:
            return False
        memory = memory_of()
        _forget(block.address)
    if memory is not None:
        memory.free()
    return True


def holds(where: Bytes) -> bool:
    """Whether all of it belongs to one tensor of new()."""
    with _lock:
        return where.count > 0 and any(where.within(block) for block, _ in list(_blocks.values()))


def _warn_unlocked() -> None:
    global _warned
    if not _warned:
        _warned = True
        warn(
            "new_cpu_locked_tensor: this process may not lock so much memory (RLIMIT_MEMLOCK), so "
            "the kernel may swap it out; raise it with `ulimit -l`. All else works."
        )
