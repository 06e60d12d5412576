"""Metrics of a job into CSV files, TensorBoard, WandB and Comet, as a ds_config asks for them.

Comes from: training loops and ballast.deepspeed. Goes to: csv_files, services. Needs no torch, but
for TensorBoard. Thread safety: used by one thread at a time.

    monitor = Monitor("ds_config.json", rank)
    monitor.write_events(round_events(samples, lr) + [("Train/loss", loss, samples)])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol

from ballast.ds_config.source import Config, load
from ballast.errors import at_border
from ballast.monitor.csv_files import CsvFiles
from ballast.monitor.events import Event, checked, round_events, timer_events
from ballast.monitor.options import SECTIONS, options_of
from ballast.monitor.services import Comet, TensorBoard, WandB

__all__ = ["SECTIONS", "Event", "Monitor", "round_events", "timer_events"]


class _Sink(Protocol):
    def write(self, events: list[Event]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


_SINKS: Mapping[str, Callable[..., _Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "csv_monitor": CsvFiles,
    "comet": Comet,
}


class Monitor:
    """The writers switched on by a ds_config's monitor sections. Rank 0 writes; others do nothing.

    config: a path, a dict or urlsafe base64; its other sections are ignored. rank: this
    trainer's. enabled: whether any section is on, on every rank.
    Raises DsConfigError for a configuration that cannot be read, BadArgument for a wrong key or
    value of these sections or a folder that cannot be made, and, on rank 0, Unsupported for a
    missing package; then nothing was begun.
    """

    @at_border
    def __init__(self, config: Config, rank: int) -> None:
        options = options_of(load(config).values)
        self.enabled = bool(options)
        self._sinks: list[_Sink] = []
        try:
            for section, values in options.items() if rank == 0 else ():
                self._sinks.append(_SINKS[section](**values))
        except BaseException:
            self.close()
            raise

    @at_border
    def write_events(self, events: list[Event]) -> None:
        """Writes (tag, value, samples) events. Rows of CSV files may wait a second; see flush().

        A value may be a tensor or array of one element. Raises BadArgument for an invalid event,
        before anything is written.
        """
        if self._sinks:
            plain = checked(events)
            for sink in self._sinks:
                sink.write(plain)

    def flush(self) -> None:
        """Earlier events are with the system, or the services' packages, when it returns."""
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        """Ends files and runs. Further events are not written."""
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            sink.close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
