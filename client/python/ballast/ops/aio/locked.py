"""Page-locked CPU tensors: file operations need no copy of their bytes.

Comes from: ballast.ops.aio.handle. Goes to: the extension module ballast._aio. All handles of a
process know all locked tensors. Thread safety: thread-safe.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from ballast import _aio
from ballast.errors import BadArgument, warn
from ballast.ops.aio.tensors import Bytes, bytes_of

_BYTES_MAX = 1 << 47  # a process has no more addresses
_lock = threading.Lock()
_blocks: dict[int, tuple[Bytes, Any]] = {}  # by address; with the memory
_warned = False


def new(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of `count` zeros on a page's start, known until free()."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    if count > _BYTES_MAX // dtype.itemsize:
        raise BadArgument(f"num_elem {count} of {dtype}; at most {_BYTES_MAX} bytes are possible")
    memory = _aio.LockedMemory(count * dtype.itemsize)
    if not memory.locked:
        _warn_unlocked()
    tensor = memory.tensor().view(dtype)
    with _lock:
        _blocks[memory.address] = (bytes_of(tensor), memory)
    return tensor


def free(tensor: torch.Tensor) -> bool:
    """Gives the memory of a tensor of new() back; False for any other tensor, and the second time.

    Whatever still looks at the memory sees zeros.
    """
    with _lock:
        block, memory = _blocks.get(tensor.data_ptr(), (None, None))
        if block is None or block.count != tensor.nbytes:
            return False
        del _blocks[block.address]
    memory.free()
    return True


def holds(where: Bytes) -> bool:
    """Whether all of it belongs to one tensor of new()."""
    with _lock:
        return where.count > 0 and any(where.within(block) for block, _ in _blocks.values())


def _warn_unlocked() -> None:
    global _warned
    if not _warned:
        _warned = True
        warn(
            "new_cpu_locked_tensor: this process may not lock so much memory (RLIMIT_MEMLOCK), so "
            "the kernel may swap it out; raise it with `ulimit -l`. All else works."
        )
