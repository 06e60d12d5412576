"""A CSV file per tag, as DeepSpeed's csv_monitor writes them.

Comes from: ballast.monitor. Goes to: <output_path>/<job_name>/Train_Samples_lr.csv, with the header
`step,lr` and a row per event. Thread safety: used by one thread at a time.

A job that is started again appends. DeepSpeed writes its header again then; here a file has one.
"""

from __future__ import annotations

import csv
import io
import os
from typing import BinaryIO

from ballast.errors import BadArgument
from ballast.monitor.events import Event


class CsvFiles:
    """The files of one job. They stay open; write() hands each row to the system at once."""

    def __init__(self, output_path: str, job_name: str) -> None:
        """Makes the folder. BadArgument when that is not possible."""
        self._folder = os.path.join(output_path, job_name)
        self._files: dict[str, BinaryIO] = {}
        self._of_tags: dict[str, BinaryIO] = {}
        try:
            os.makedirs(self._folder, exist_ok=True)
        except OSError as error:
            raise BadArgument(
                f"csv_monitor: {self._folder} cannot be made: {error.strerror}"
            ) from None

    def write(self, events: list[Event]) -> None:
        """Appends a row per event. OSError when a file cannot be written."""
        for tag, value, samples in events:
            shown = float.__repr__(value) if isinstance(value, float) else value
            self._file(tag).write(f"{samples},{shown}\r\n".encode())

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._of_tags.clear()

    def _file(self, tag: str) -> BinaryIO:
        """That of a tag; not buffered. Tags that differ in blanks and slashes have one."""
        if (found := self._of_tags.get(tag)) is not None:
            return found
        name = tag.replace("/", "_").replace(" ", "_")
        if name not in self._files:
            path = os.path.join(self._folder, f"{name}.csv")
            file = open(path, "ab", buffering=0)
            self._files[name] = file
            end = file.seek(0, os.SEEK_END)
            if end == 0:
                file.write(_row("step", tag.rpartition("/")[2]))
            elif not _ends_a_line(path, end):
                file.write(b"\r\n")
        self._of_tags[tag] = self._files[name]
        return self._files[name]


def _row(*values: str) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(values)
    return text.getvalue().encode()


def _ends_a_line(path: str, end: int) -> bool:
    """Whether the last row is whole; a job that was killed may have left half of one."""
    with open(path, "rb") as file:
        file.seek(end - 1)
        return file.read(1) == b"\n"
