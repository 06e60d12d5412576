"""A CSV file per tag, as DeepSpeed's csv_monitor writes them.

Comes from: ballast.monitor. Goes to: <output_path>/<job_name>/Train_Samples_lr.csv, with the header
`step,lr` and a row per event. Thread safety: used by one thread at a time.

A job that is started again appends. DeepSpeed writes its header again then; here a file has one.
"""

from __future__ import annotations

import csv
import os
from typing import TextIO

from ballast.errors import BadArgument
from ballast.monitor.events import Event


class CsvFiles:
    """The files of one job. They stay open; write() hands each row to the system at once."""

    def __init__(self, output_path: str, job_name: str) -> None:
        """Makes the folder. BadArgument when that is not possible."""
        self._folder = os.path.join(output_path, job_name)
        self._files: dict[str, TextIO] = {}
        try:
            os.makedirs(self._folder, exist_ok=True)
        except OSError as error:
            raise BadArgument(
                f"csv_monitor: {self._folder} cannot be made: {error.strerror}"
            ) from None

    def write(self, events: list[Event]) -> None:
        """Appends a row per event. OSError when a file cannot be written."""
        touched: dict[str, TextIO] = {}
        for tag, value, samples in events:
            name = tag.replace("/", "_").replace(" ", "_")
            file = self._file(name, tag.rpartition("/")[2])
            csv.writer(file).writerow([samples, value])
            touched[name] = file
        for file in touched.values():
            file.flush()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _file(self, name: str, header: str) -> TextIO:
        if name not in self._files:
            path = os.path.join(self._folder, f"{name}.csv")
            file = open(path, "a+", newline="", encoding="utf-8")
            self._files[name] = file
            end = file.seek(0, os.SEEK_END)
            if end == 0:
                csv.writer(file).writerow(["step", header])
            elif not _ends_a_line(path, end):
                file.write("\r\n")
        return self._files[name]


def _ends_a_line(path: str, end: int) -> bool:
    """Whether the last row is whole; a job that was killed may have left half of one."""
    with open(path, "rb") as file:
        file.seek(end - 1)
        return file.read(1) == b"\n"
