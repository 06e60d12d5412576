"""Errors of ballast.ops.aio's file operations.

Comes from: the extension module ballast._aio (from_status). Goes to: user code. All are
BallastErrors; those about files are also OSErrors with errno set.
"""

from __future__ import annotations

import errno
from typing import Any

from ballast.errors import BadArgument, BallastError, Unsupported

__all__ = ["AioError", "FileMissing", "FileRefused", "FileTooShort", "WrongType", "from_status"]

_ERRNO = {
    "NOT_FOUND": errno.ENOENT,
    "PERMISSION_DENIED": errno.EACCES,
    "RESOURCE_EXHAUSTED": errno.ENOSPC,
    "OUT_OF_RANGE": errno.EINVAL,
}


class AioError(BallastError, OSError):
    """A file or device refused an operation; the text names the file and the bytes."""

    default_code = "INTERNAL"
    default_reason = "STORAGE_FAILED"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.errno = _ERRNO.get(self.code, errno.EIO)


class FileMissing(AioError, FileNotFoundError):
    """There is no such file, or no such folder to make it in."""

    default_code = "NOT_FOUND"
    default_reason = "BAD_ARGUMENT"


class FileRefused(AioError, PermissionError):
    """This user may not open the file."""

    default_code = "PERMISSION_DENIED"
    default_reason = "BAD_ARGUMENT"


class FileTooShort(AioError, EOFError):
    """A read would pass the end of the file; the text has both sizes."""

    default_code = "OUT_OF_RANGE"
    default_reason = "BAD_ARGUMENT"


class WrongType(BadArgument, TypeError):
    """An argument has an unsupported type."""


_KINDS: dict[str, type[BallastError]] = {
    kind.default_code: kind for kind in (FileMissing, FileRefused, FileTooShort, BadArgument)
}


def from_status(code: str, message: str) -> BallastError:
    """The exception for one status of the extension module.

    code: name of an absl status code, such as "RESOURCE_EXHAUSTED" for a full disk.
    """
    if code == Unsupported.default_code:
        return Unsupported(message)
    return _KINDS.get(code, AioError)(message, code=code)
