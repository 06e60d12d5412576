"""TensorBoard, WandB and Comet, called as DeepSpeed's monitors call them.

Comes from: ballast.monitor. Goes to: the packages tensorboard, wandb and comet_ml, imported when a
class is made. Thread safety: used by one thread at a time.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

from ballast.errors import Unsupported
from ballast.monitor.events import Event

_COMET_MIN = (3, 41, 0)


def _package(section: str, name: str) -> Any:
    """The package of a section. Unsupported, with the way out, when it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unsupported(
            f"{section}.enabled is true, and the package {name} cannot be imported ({error}); "
            f"install it (pip install {name}), or use csv_monitor, which needs no package"
        ) from None


class _AtOnce:
    """write() keeps nothing back."""

    def flush(self) -> None:
        """Does nothing."""


class TensorBoard(_AtOnce):
    """Event files in <output_path>/<job_name>."""

    def __init__(self, output_path: str, job_name: str) -> None:
        _package("tensorboard", "tensorboard")
        writers = _package("tensorboard", "torch.utils.tensorboard")
        folder = os.path.join(output_path, job_name)
        os.makedirs(folder, exist_ok=True)
        self._writer = writers.SummaryWriter(log_dir=folder)

    def write(self, events: list[Event]) -> None:
        for tag, value, samples in events:
            self._writer.add_scalar(tag, value, samples)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB(_AtOnce):
    """A run of `project`; `team` is WandB's entity."""

    def __init__(self, group: str | None, team: str | None, project: str) -> None:
        self._wandb = _package("wandb", "wandb")
        self._wandb.init(project=project, group=group, entity=team)

    def write(self, events: list[Event]) -> None:
        for tag, value, samples in events:
            self._wandb.log({tag: value}, step=samples)

    def close(self) -> None:
        self._wandb.finish()


class Comet(_AtOnce):
    """An experiment. A tag is sent once in `samples_log_interval` samples."""

    def __init__(
        self, samples_log_interval: int, experiment_name: str | None, **start: Any
    ) -> None:
        """start: arguments of comet_ml.start()."""
        comet = _package("comet", "comet_ml")
        if _version(comet.__version__) < _COMET_MIN:
            raise Unsupported(
                f"comet.enabled is true, and comet_ml is {comet.__version__}; install 3.41.0 or "
                "later, or use csv_monitor, which needs no package"
            )
        self._interval = samples_log_interval
        self._sent: dict[str, int] = {}
        self._experiment = comet.start(**start)
        if experiment_name is not None:
            self._experiment.set_name(experiment_name)

    def write(self, events: list[Event]) -> None:
        for tag, value, samples in events:
            last = self._sent.get(tag)
            if last is None or samples - last >= self._interval:
                self._sent[tag] = samples
                self._experiment.log_metric(tag, value, step=samples)

    def close(self) -> None:
        self._experiment.end()


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", text)[:3])
