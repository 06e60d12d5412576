"""DeepNVMe's aio_handle: reads files into CPU tensors and writes tensors to files.

Comes from: ballast.ops.aio.async_io. Goes to: the extension module ballast._aio. Names, arguments,
defaults and results are those of DeepSpeed 0.19.8 (csrc/aio/py_lib/py_ds_aio.cpp); failures that
return -1 or assert there raise here. Thread safety: thread-safe; a process forked from the owner
gets Closed from every operation.
"""

from __future__ import annotations

import atexit
import operator
import os
import threading
import weakref
from typing import Any

import torch

from ballast import _aio
from ballast.errors import BadArgument, BallastError, Closed, at_border
from ballast.ops.aio import locked
from ballast.ops.aio.errors import WrongType, from_status
from ballast.ops.aio.tensors import Bytes, bytes_of
from ballast.pauses import say

__all__ = ["aio_handle"]

# Waits are cut into slices so that Python runs its signal handlers (Ctrl-C) in between.
_SLICE_S = 0.1
# Direct I/O of one part needs offsets and lengths in multiples of it; see get_alignment().
_SECTOR_BYTES = 512
_OFFSET_MAX = (1 << 63) - 1
_BLOCK_MAX = 1 << 40
_PAGE_BYTES = 4096  # The engine's requests are multiples of this.
_handles: weakref.WeakSet[aio_handle] = weakref.WeakSet()
_handles_lock = threading.Lock()


class aio_handle:  # noqa: N801  (DeepSpeed's name)
    """Queues to the disk that live as long as the handle.

    block_size: bytes of one request to the device, 1 to 2^40; requests have the next multiple of
    4096. queue_depth: requests under way of each part. intra_op_parallelism: parts of one
    operation, each with threads and a queue of its own. single_submit, overlap_events: have no
    effect; requests go to the device as many at a time as there are, and the queue is kept full.
    Raises BadArgument for values out of range.

    A buffer is a contiguous CPU tensor of any dtype, shape and alignment, of which all bytes are
    transferred. It is unchanged between an async_ call and the wait() that follows. filename: a
    path. file_offset: byte of the file where the tensor begins. A write keeps the rest of the file.
    """

    @at_border
    def __init__(
        self,
        block_size: int = 1024 * 1024,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        self._block_size = _integer("block_size", block_size, 1, _BLOCK_MAX)
        self._queue_depth = _integer("queue_depth", queue_depth, 1, 4096)
        self._single_submit = _boolean("single_submit", single_submit)
        self._overlap_events = _boolean("overlap_events", overlap_events)
        self._intra_op_parallelism = _integer(
            "intra_op_parallelism", intra_op_parallelism, 1, 64
        )
        self._pid = os.getpid()
        requests = -(-self._block_size // _PAGE_BYTES) * _PAGE_BYTES
        self._native = _aio.Handle(requests, self._queue_depth, self._intra_op_parallelism)
        self._alone_lock = threading.Lock()
        self._other: aio_handle | None = None  # of read() and write()
        with _handles_lock:
            _handles.add(self)

    def get_block_size(self) -> int:
        """As given."""
        return self._block_size

    def get_queue_depth(self) -> int:
        """As given."""
        return self._queue_depth

    def get_single_submit(self) -> bool:
        """As given."""
        return self._single_submit

    def get_overlap_events(self) -> bool:
        """As given."""
        return self._overlap_events

    def get_intra_op_parallelism(self) -> int:
        """As given."""
        return self._intra_op_parallelism

    def get_alignment(self) -> int:
        """What DeepNVMe wants lengths to be multiples of: 512 * intra_op_parallelism bytes.

        Here any length will do.
        """
        return _SECTOR_BYTES * self._intra_op_parallelism

    @at_border
    def read(
        self, buffer: torch.Tensor, filename: str, validate: bool, file_offset: int = 0
    ) -> int:
        """Reads the file, from file_offset to its end, into the tensor. Returns 0.

        validate: reads once more, through the page cache, and compares.
        Raises BadArgument unless the tensor has exactly the file's bytes; else as wait().
        """
        where, path, offset = bytes_of(buffer), _path(filename), _offset(file_offset)
        rest = _size(path) - offset
        if rest > where.count:
            raise BadArgument(
                f"read: {path} has {rest} bytes from offset {offset} on, the tensor {where.count}; "
                "read() takes a tensor of the file's size, pread() reads a part of the file"
            )
        self._alone(False, buffer, path, offset, validate)
        return 0

    @at_border
    def write(
        self, buffer: torch.Tensor, filename: str, validate: bool, file_offset: int = 0
    ) -> int:
        """Writes the tensor to the file. Returns 0. validate: reads it back and compares."""
        self._alone(True, buffer, _path(filename), _offset(file_offset), validate)
        return 0

    @at_border
    def pread(self, *arguments: Any, **named: Any) -> int:
        """pread(buffer, filename, validate, async, file_offset=0): reads as many bytes as fit.

        async: returns 0 at once, and wait() ends it; else as sync_pread(). The word is reserved in
        Python: give it by position, or as **{"async": True}.
        """
        buffer, filename, validate, later, offset = _five("pread", arguments, named)
        return self._start(False, buffer, filename, offset, validate, later)

    @at_border
    def pwrite(self, *arguments: Any, **named: Any) -> int:
        """pwrite(buffer, filename, validate, async, file_offset=0); see pread()."""
        buffer, filename, validate, later, offset = _five("pwrite", arguments, named)
        return self._start(True, buffer, filename, offset, validate, later)

    @at_border
    def sync_pread(self, buffer: torch.Tensor, filename: str, file_offset: int = 0) -> int:
        """Reads, and waits as wait() does. Returns what wait() returns: 1 if nothing else ran."""
        return self._start(False, buffer, filename, file_offset, False, False)

    @at_border
    def sync_pwrite(self, buffer: torch.Tensor, filename: str, file_offset: int = 0) -> int:
        """Writes, and waits as wait() does. Returns what wait() returns: 1 if nothing else ran."""
        return self._start(True, buffer, filename, file_offset, False, False)

    @at_border
    def async_pread(self, buffer: torch.Tensor, filename: str, file_offset: int = 0) -> int:
        """Begins to read; returns 0. The tensor has its bytes after the next wait()."""
        return self._start(False, buffer, filename, file_offset, False, True)

    @at_border
    def async_pwrite(
        self,
        buffer: torch.Tensor,
        filename: str | int | None = None,
        file_offset: int = 0,
        *,
        fd: int | None = None,
    ) -> int:
        """Begins to write; returns 0. The file has all bytes after the next wait().

        In place of filename: fd, a descriptor of a regular file, which may be closed at once.
        """
        target = filename if fd is None else fd
        if not isinstance(target, int):
            return self._start(True, buffer, target, file_offset, False, True)
        os.fstat(target)  # OSError for a closed one
        return self._start(True, buffer, f"/proc/self/fd/{target}", file_offset, False, True)

    @at_border
    def wait(self) -> int:
        """Waits for all started operations; returns how many ended since the last wait().

        Raises the first error, when all have ended: AioError (an OSError, ENOSPC for a full disk),
        FileTooShort when a file became shorter, AioError when validate found another byte. After a
        KeyboardInterrupt, operations still run, and the next wait() counts those that this one did
        not.
        """
        return self._ended()

    @at_border
    def new_cpu_locked_tensor(
        self,
        num_elem: int,
        example_tensor: torch.Tensor | None = None,
        *,
        example_tenosr: torch.Tensor | None = None,  # DeepSpeed 0.19.8 spells it so
    ) -> torch.Tensor:
        """num_elem zeros of the example's dtype, in page-locked memory that needs no copy.

        The memory is free when free_cpu_locked_tensor() has run, or no tensor looks at it.
        """
        example = example_tenosr if example_tensor is None else example_tensor
        if not isinstance(example, torch.Tensor):
            raise WrongType(f"example_tensor is {type(example).__name__}; give a torch.Tensor")
        return locked.new(_integer("num_elem", num_elem, 0, _OFFSET_MAX), example.dtype)

    @at_border
    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        """Gives the memory of a locked tensor back, and returns True; False for any other tensor.

        Raises BadArgument while an operation on it is under way.
        """
        where = bytes_of(tensor, "tensor")
        for handle in _all_handles():
            if handle._uses(where):
                raise BadArgument(
                    "free_cpu_locked_tensor: an operation on this tensor is under way; call wait()"
                )
        return locked.free(tensor)

    @at_border
    def is_pinned(self, buffer: torch.Tensor) -> bool:
        """Whether the tensor's memory is page-locked, by new_cpu_locked_tensor() or by torch."""
        return locked.holds(bytes_of(buffer)) or buffer.is_pinned()

    def _start(
        self, write: bool, buffer: Any, filename: Any, offset: Any, validate: Any, later: Any
    ) -> int:
        where, path = bytes_of(buffer), _path(filename)
        check = _boolean("validate", validate)
        later = _boolean("async", later)
        at = _offset(offset)
        self._owned().start(write, path, at, where.address, where.count, check, buffer)
        return 0 if later else self._ended()

    def _alone(self, write: bool, buffer: Any, path: str, offset: int, validate: Any) -> None:
        """An operation that no wait() counts: on a queue of its own, as it waits for its end."""
        self._owned()
        with self._alone_lock:
            if self._other is None:
                self._other = aio_handle(self._block_size, self._queue_depth)
            self._other._start(write, buffer, path, offset, validate, False)

    def _ended(self) -> int:
        native = self._owned()
        last = native.last()
        while not native.wait(last, _SLICE_S):
            pass
        return native.take()  # Nothing after it: an interrupt before it loses nothing.

    def _uses(self, where: Bytes) -> bool:
        if os.getpid() != self._pid:  # Nothing of the parent's runs in this process.
            return False
        return self._native.uses(where.address, where.count)

    def _owned(self) -> Any:
        if os.getpid() != self._pid:
            raise Closed("this aio_handle belongs to the process that this one was forked from")
        return self._native


def _all_handles() -> list[aio_handle]:
    with _handles_lock:
        return list(_handles)


def _integer(name: str, value: Any, least: int, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise WrongType(f"{name} is {value!r}; give an integer") from None
    if not least <= number <= most:
        raise BadArgument(f"{name} {number}; use {least} to {most}")
    return number


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, str):
        raise WrongType(f"{name} is the text {value!r}; give True or False")
    return bool(value)


def _offset(value: Any) -> int:
    return _integer("file_offset", value, 0, _OFFSET_MAX)


def _path(value: Any) -> str:
    try:
        path = os.fsdecode(value)
    except TypeError:
        raise WrongType(f"filename is {type(value).__name__}; give a path") from None
    if "\0" in path:
        raise BadArgument(f"filename {path!r} contains a zero byte")
    return path


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError as error:
        raise from_status("NOT_FOUND", f"cannot read {path}: {error.strerror}") from None


_NAMES = ("buffer", "filename", "validate", "async", "file_offset")


def _five(name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of pread() and pwrite(), of which one has a name that Python reserves."""
    text = f"{name}() takes ({', '.join(_NAMES[:4])}, file_offset=0)"
    given = dict(zip(_NAMES, arguments, strict=False))
    if len(arguments) > len(_NAMES) or given.keys() & named.keys() or named.keys() - set(_NAMES):
        raise WrongType(text)
    given.update(named)
    given.setdefault("file_offset", 0)
    if len(given) < len(_NAMES):
        raise WrongType(text)
    return tuple(given[key] for key in _NAMES)


def _finish() -> None:
    """Runs before the process ends: started writes reach their files, and errors are printed."""
    for handle in _all_handles():
        if handle._pid != os.getpid():
            continue
        try:
            handle._ended()
        except BallastError as error:
            say(0, f"aio_handle, without a wait(): {error}")


atexit.register(_finish)
