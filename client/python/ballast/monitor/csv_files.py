"""A CSV file per tag, as DeepSpeed's csv_monitor writes them.

Comes from: ballast.monitor. Goes to: <output_path>/<job_name>/Train_Samples_lr.csv, with the header
`step,lr` and a row per event. Thread safety: used by one thread at a time.

A restarted job appends. DeepSpeed writes its header again then; here a file has one.
Rows go to the files when a second has passed since the last ones did: a round has up to 13 rows,
each in a file of its own, and a write for each of them cost a round of 2 ms 4 % of its time.
"""

from __future__ import annotations

import csv
import io
import os
import time
import weakref
from collections.abc import Callable
from typing import BinaryIO

from ballast.errors import BadArgument
from ballast.monitor.events import Event

_EVERY_S = 1.0
_ROWS_MAX = 16384


class CsvFiles:
    """The files of one job. They stay open.

    A row waits in memory for at most _ROWS_MAX others, and for the first write() that comes
    _EVERY_S after the last one that reached the files; flush(), close() and the end of the process
    write it, too.
    """

    def __init__(
        self, output_path: str, job_name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Makes the folder. BadArgument when it cannot. clock: seconds."""
        folder = os.path.join(output_path, job_name)
        self._rows: list[Event] = []
        self._files = _Files(folder)
        self._clock = clock
        self._due = -float("inf")  # by the clock
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise BadArgument(f"csv_monitor: {folder} cannot be made: {error.strerror}") from None
        self._end = weakref.finalize(self, _end, self._rows, self._files, os.getpid())

    def write(self, events: list[Event]) -> None:
        """Takes a row per event. OSError when a file cannot be written; its rows are lost."""
        self._rows += events
        now = self._clock()
        if now >= self._due or len(self._rows) >= _ROWS_MAX:
            self._due = now + _EVERY_S
            self.flush()

    def flush(self) -> None:
        """Hands all rows to the system. OSError as write()."""
        _flush(self._rows, self._files)

    def close(self) -> None:
        self._end()


class _Files:
    """The open files by tag; not buffered."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._of_tags: dict[str, BinaryIO] = {}

    def append(self, tag: str, rows: list[str]) -> None:
        _write(self._of_tags.get(tag) or self._open(tag), "".join(rows).encode())

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._of_tags.clear()

    def _open(self, tag: str) -> BinaryIO:
        """That of a tag. Tags that differ in blanks and slashes have one."""
        name = tag.replace("/", "_").replace(" ", "_")
        if name not in self._files:
            path = os.path.join(self._folder, f"{name}.csv")
            file = open(path, "ab", buffering=0)
            self._files[name] = file
            end = file.seek(0, os.SEEK_END)
            if end == 0:
                _write(file, _row("step", tag.rpartition("/")[2]))
            elif not _ends_a_line(path, end):
                _write(file, b"\r\n")
        self._of_tags[tag] = self._files[name]
        return self._files[name]


def _flush(rows: list[Event], files: _Files) -> None:
    """Writes and forgets the rows, those of a tag at once."""
    of_tags: dict[str, list[str]] = {}
    for tag, value, samples in rows:
        shown = float.__repr__(value) if isinstance(value, float) else value
        of_tags.setdefault(tag, []).append(f"{samples},{shown}\r\n")
    rows.clear()
    for tag, texts in of_tags.items():
        files.append(tag, texts)


def _end(rows: list[Event], files: _Files, pid: int) -> None:
    # A forked process has rows and files, too, and they are not its own.
    try:
        if os.getpid() == pid:
            _flush(rows, files)
    finally:
        files.close()


def _write(file: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _row(*values: str) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(values)
    return text.getvalue().encode()


def _ends_a_line(path: str, end: int) -> bool:
    """Whether the last row is whole; a killed job may have left half of one."""
    with open(path, "rb") as file:
        file.seek(end - 1)
        return file.read(1) == b"\n"
