"""The ds_config of a launch, judged before anything starts.

Comes from: ballast.run. Goes to: ballast.ds_config. Thread safety: reads one file.
"""

from __future__ import annotations

from pathlib import Path

from ballast.ds_config import launched
from ballast.ds_config.check import check
from ballast.ds_config.report import refusal
from ballast.ds_config.source import load

# Settings that the script's training arguments may decide; then the script is asked.
_LATER = ("auto", "mismatch")
_MICRO = "train_micro_batch_size_per_gpu"


def checked(file: Path, precision: str | None, world: int) -> Path:
    """The absolute path of a ds_config that a job of `world` trainers can do.

    precision: that of --mixed-precision, or None. Raises DsConfigError for a file that cannot be
    read, BadArgument for one that says another precision, Unsupported with all refused keys.
    """
    values = dict(load(file).values)
    if precision is not None:
        values = launched.precise(values, precision)
    if "train_batch_size" not in values:
        values.setdefault(_MICRO, "auto")  # Trainer's arguments have it, too
    refused = [f for f in check(values, world).refused if f.code not in _LATER]
    error = refusal(file, refused)
    if error is not None:
        raise error
    return file.resolve()
