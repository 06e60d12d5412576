"""The zip file that torch.save writes, as members read in place.

Comes from: ballast.ds_checkpoint.torch_file. Goes to: the file. Thread safety: thread-compatible.

Input is hostile. torch stores members without compression, one after the other, under one folder;
anything else is refused. So no member is larger than the file, and all together are not.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from typing import BinaryIO, cast

from ballast.ds_checkpoint.errors import CheckpointError, shown

# The list of members is read at once: some 100 bytes for each.
_LIST_BYTES_MAX = 64 << 20
_PIECE = 1 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 1
# What zipfile raises for a damaged list.
_DAMAGE = (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, OSError)


class Archive:
    """A file's list of members. The file is opened for each read, so many archives may be in use.

    Raises CheckpointError for an absent file or one that torch.save did not write.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._members: dict[str, Member] = {}
        with self.open() as file:
            self._found = _identity(file)
            self._list(file)

    def open(self) -> BinaryIO:
        """The file, for reading; the caller closes it."""
        if not os.path.isfile(self.path):
            raise CheckpointError(self.path, "is no file")
        try:
            return open(self.path, "rb", buffering=0)  # type: ignore[return-value]
        except OSError as error:
            raise CheckpointError(self.path, f"cannot be opened: {error.strerror}") from None

    def read(self, at: int, count: int) -> bytearray:
        """Bytes [at, at + count) of the listed file."""
        data = bytearray(count)
        view = memoryview(data)
        with self.open() as file:
            if _identity(file) != self._found:
                raise CheckpointError(self.path, "has changed since it was opened")
            file.seek(at)
            while len(view):
                read = _read_into(file, view, self.path)
                view = view[read:]
        return data

    def member(self, name: str) -> Member:
        """A member by its name below the archive's folder, such as "data.pkl" or "data/0"."""
        found = self._members.get(name)
        if found is None:
            raise CheckpointError(self.path, f"has no member {shown(name)}; the file is damaged")
        return found

    def has(self, name: str) -> bool:
        return name in self._members

    def _list(self, file: BinaryIO) -> None:
        size = os.fstat(file.fileno()).st_size
        try:
            with zipfile.ZipFile(cast(BinaryIO, _Bounded(file, self.path))) as listed:
                infos, end = listed.infolist(), listed.start_dir
        except CheckpointError:
            raise
        except _DAMAGE as error:
            raise CheckpointError(
                self.path,
                f"is no zip file, or is cut off ({shown(str(error))}); torch.save has written zip "
                "files since torch 1.6",
            ) from None
        infos.sort(key=lambda info: info.header_offset)
        ends = [info.header_offset for info in infos[1:]] + [end]
        for info, member_end in zip(infos, ends):
            self._add(info, member_end)
        if sum(info.file_size for info in infos) > size or (infos and infos[0].header_offset < 0):
            raise CheckpointError(self.path, "has members that are larger than the file together")

    def _add(self, info: zipfile.ZipInfo, end: int) -> None:
        name = info.filename
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise CheckpointError(
                self.path, f"member {shown(name)} is compressed; torch.save does not do that"
            )
        if info.flag_bits & _ENCRYPTED:
            raise CheckpointError(self.path, f"member {shown(name)} is encrypted")
        short = name.partition("/")[2]
        if short in self._members:
            raise CheckpointError(self.path, f"has two members {shown(short)}")
        self._members[short] = Member(self, info, end)


class Member:
    """One member: bytes of the file."""

    def __init__(self, archive: Archive, info: zipfile.ZipInfo, end: int) -> None:
        self._archive = archive
        self._info = info
        self._end = end
        self._start = -1
        self.size = info.file_size

    def read(self, offset: int, count: int) -> bytearray:
        """Bytes [offset, offset + count). The first call compares the CRC-32 of the whole member.

        CheckpointError where the bytes differ from those written.
        """
        if self._start < 0:
            self._start = self._checked_start()
        if offset < 0 or count < 0 or offset + count > self.size:
            raise self._error(f"has {self.size} bytes, not {offset + count}")
        return self._archive.read(self._start + offset, count)

    def _checked_start(self) -> int:
        at = self._info.header_offset
        header = self._archive.read(at, _LOCAL_HEADER.size)
        magic, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
        start = at + _LOCAL_HEADER.size + name_bytes + extra_bytes
        if magic != _LOCAL_MAGIC or start + self.size > self._end:
            raise self._error("is not where the list says, or overlaps another")
        crc = 0
        for piece in range(start, start + self.size, _PIECE):
            crc = zlib.crc32(self._archive.read(piece, min(_PIECE, start + self.size - piece)), crc)
        if crc != self._info.CRC:
            raise self._error("is damaged: its CRC-32 differs from the recorded one")
        return start

    def _error(self, text: str) -> CheckpointError:
        return CheckpointError(self._archive.path, f"member {shown(self._info.filename)} {text}")


def _identity(file: BinaryIO) -> tuple[int, ...]:
    """Values by which a path is recognized as the same file with the same bytes."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read_into(file: BinaryIO, view: memoryview, path: str) -> int:
    try:
        read: int = file.readinto(view)  # type: ignore[attr-defined]
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from None
    if read == 0:
        raise CheckpointError(path, "is cut off")
    return read


class _Bounded:
    """The file as zipfile reads it, to list members: no piece of it is large."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self.seek = file.seek
        self.tell = file.tell
        self.seekable = file.seekable

    def read(self, count: int = -1) -> bytes:
        wanted = _LIST_BYTES_MAX + 1 if count < 0 else min(count, _LIST_BYTES_MAX + 1)
        data = self._file.read(wanted)
        if len(data) > _LIST_BYTES_MAX:
            raise CheckpointError(
                self._path, f"lists its members in more than {_LIST_BYTES_MAX} bytes, the limit"
            )
        return data
