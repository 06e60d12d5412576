"""Which kind of optimizer an export is of, as its job.ballast says it.

Comes from: ballast.torch.files. Pure but for reading the file, which is untrusted: no number
in it takes memory. The format: docs/formats/snapshot.md, "MANIFEST"; of its plan, which
is a PeerJob of peer.proto, only the optimizer of the job's specification is read. The checksum is
left to `ballastctl import`.
"""

from __future__ import annotations

import os
import struct

from ballast.errors import BadArgument

_NAME = "job.ballast"
_HEAD = struct.Struct("<8sIIQQ")  # magic, version, 0, length, id
_MAGIC, _VERSION = b"BALLSNP\n", 1
_BYTES_MAX = 256 << 20  # as the servers have it
_U32 = struct.Struct("<I")
_NUMBERS_BEFORE_PLAN = 3 * 8  # created, round, bytes
_SPEC_OF_JOB, _OPTIMIZER_OF_SPEC = 2, 3  # fields
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
# The service's names by OptimizerKind of types.proto, from 1.
_KINDS = ("AdamW", "Adam", "SGD", "Adagrad", "Lion", "LAMB", "apply_delta")


def service_kind_of(directory: str) -> str | None:
    """The service's name of the kind; None where the directory has no job.ballast.

    BadArgument, naming the file, for a file of another kind, a damaged one, or one of a newer
    version.
    """
    path = os.path.join(directory, _NAME)
    if not os.path.lexists(path):
        return None
    if not os.path.isfile(path):
        raise _bad(path, "is no file, or links to none")
    try:
        with open(path, "rb") as file:
            number = _kind_number(memoryview(file.read(_BYTES_MAX)))
    except OSError as error:
        raise _bad(path, f"cannot be read ({error.strerror})") from None
    except (ValueError, IndexError, struct.error):
        raise _bad(path, "is damaged, or of another version") from None
    if not 1 <= number <= len(_KINDS):
        raise _bad(path, f"is of optimizer kind {number}; this version has 1 to {len(_KINDS)}")
    return _KINDS[number - 1]


def _bad(path: str, what: str) -> BadArgument:
    return BadArgument(
        f"load_export(): {path} {what}; export again, or move it away to have the optimizer state "
        "judged by its arrays"
    )


def _kind_number(content: memoryview) -> int:
    magic, version, _, length, _ = _HEAD.unpack_from(content)
    if (magic, version, length) != (_MAGIC, _VERSION, len(content)):
        raise ValueError
    at = _HEAD.size
    for _ in range(2):  # names of the snapshot and of the job
        at += _U32.size + _U32.unpack_from(content, at)[0]
    at += _NUMBERS_BEFORE_PLAN
    (size,) = _U32.unpack_from(content, at)
    plan = _cut(content, at + _U32.size, size)
    spec = _field(plan, _SPEC_OF_JOB)
    number = _field(spec, _OPTIMIZER_OF_SPEC) if isinstance(spec, memoryview) else None
    if not isinstance(number, int):
        raise ValueError
    return number


def _field(message: memoryview, wanted: int) -> int | memoryview | None:
    """The last value of a field of a protobuf message: a varint, or the bytes of another type."""
    found: int | memoryview | None = None
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value: int | memoryview
        if tag & 7 == _VARINT:
            value, at = _varint(message, at)
        else:
            sizes = {_FIXED64: 8, _FIXED32: 4}
            if tag & 7 == _BYTES:
                size, at = _varint(message, at)
            elif tag & 7 in sizes:
                size = sizes[tag & 7]
            else:
                raise ValueError
            value = _cut(message, at, size)
            at += size
        if tag >> 3 == wanted:
            found = value
    return found


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError


def _cut(message: memoryview, at: int, size: int) -> memoryview:
    if at + size > len(message):
        raise ValueError
    return message[at : at + size]
