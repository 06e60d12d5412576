"""The arguments of Hugging Face's Trainer that fill "auto" in a ds_config.

Comes from: callers of `check` and ballast.hf. Goes to: ballast.ds_config.filling. Thread safety:
immutable values, pure functions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ballast.ds_config.kinds import BOOLEAN, NUMBER, POSITIVE, Kind, Number, WrongValue, shown
from ballast.errors import BadArgument


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Fields of transformers 5.23's TrainingArguments, by their names; None: not known.

    warmup_steps: a number of optimizer steps, or below 1 a share of all steps. warmup_ratio: that
    share in older versions, which counts if warmup_steps is 0. fp16, bf16: also where only
    evaluation uses them, or the launcher has chosen them (mixed_precision). auto_find_batch_size:
    the Trainer may lower the batch size, so the file need not have the same. world_size: trainers.
    num_training_steps: optimizer steps of the whole run. hidden_size: of the model's config, the
    largest one if it has several.
    """

    per_device_train_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    max_grad_norm: float | None = None
    learning_rate: float | None = None
    adam_beta1: float | None = None
    adam_beta2: float | None = None
    adam_epsilon: float | None = None
    weight_decay: float | None = None
    warmup_steps: float | None = None
    warmup_ratio: float | None = None
    fp16: bool | None = None
    bf16: bool | None = None
    auto_find_batch_size: bool | None = None
    world_size: int | None = None
    num_training_steps: int | None = None
    hidden_size: int | None = None

    @classmethod
    def of(cls, given: Any, model: Any = None, num_steps: int | None = None) -> Arguments:
        """Reads a TrainingArguments, or a mapping such as its to_dict(); other names are left.

        model: has a `config` with hidden_size, hidden_sizes or text_config, or none of them.
        num_steps: num_training_steps; without it, max_steps of `given` counts if it is above 0.
        Absent names and None count as unknown. Raises BadArgument for a value of a wrong type.
        """
        read = _Source(given)
        values = {name: read(name, kind) for name, kind in _KINDS.items()}
        for name in ("fp16", "bf16"):
            values[name] = _either(values[name], read(f"{name}_full_eval", BOOLEAN))
            values[name] = _either(values[name], read.precision == name or None)
        values["num_training_steps"] = num_steps or values["num_training_steps"] or _max_steps(read)
        values["hidden_size"] = _hidden_size(model) or values["hidden_size"]
        return cls(**values)

    def warmup(self) -> int | None:
        """Steps of the warm-up, at least 1; None while a share waits for num_training_steps."""
        if self.warmup_steps is None and self.warmup_ratio is None:
            return None
        if self.warmup_steps is not None and self.warmup_steps >= 1:
            return int(self.warmup_steps)
        share = self.warmup_steps or self.warmup_ratio or 0.0
        if share and self.num_training_steps is None:
            return None
        return max(1, math.ceil(share * (self.num_training_steps or 0)))

    def batch(self) -> int | None:
        """Samples of one optimizer step over all trainers."""
        micro, steps = self.per_device_train_batch_size, self.gradient_accumulation_steps
        known = [size for size in (self.world_size, micro, steps) if size is not None]
        return math.prod(known) if len(known) == 3 else None


_KINDS: dict[str, Kind] = {
    "per_device_train_batch_size": POSITIVE,
    "gradient_accumulation_steps": POSITIVE,
    "max_grad_norm": NUMBER,
    "learning_rate": NUMBER,
    "adam_beta1": NUMBER,
    "adam_beta2": NUMBER,
    "adam_epsilon": NUMBER,
    "weight_decay": NUMBER,
    "warmup_steps": Number(0.0),
    "warmup_ratio": Number(0.0, 1.0),
    "fp16": BOOLEAN,
    "bf16": BOOLEAN,
    "auto_find_batch_size": BOOLEAN,
    "world_size": POSITIVE,
    "num_training_steps": POSITIVE,
    "hidden_size": POSITIVE,
}


class _Source:
    """Reads checked values by name from a mapping or an object."""

    def __init__(self, given: Any) -> None:
        self._given = given

    @property
    def precision(self) -> Any:
        """mixed_precision of a TrainingArguments: the launcher's, where no field gives one."""
        return self._raw("mixed_precision")

    def _raw(self, name: str) -> Any:
        mapping = isinstance(self._given, Mapping)
        return self._given.get(name) if mapping else getattr(self._given, name, None)

    def __call__(self, name: str, kind: Kind) -> Any:
        value = self._raw(name)
        if value is None:
            return None
        try:
            return kind.read(value)
        except WrongValue as error:
            raise BadArgument(f"training arguments: {name}={shown(value)} {error}") from None


def _either(first: bool | None, second: bool | None) -> bool | None:
    return None if first is None and second is None else bool(first or second)


def _max_steps(read: _Source) -> int | None:
    """The Trainer's default is -1: the epochs and the length of the data decide."""
    steps = read("max_steps", NUMBER)
    return int(steps) if steps is not None and steps >= 1 else None


def _hidden_size(model: Any) -> int | None:
    config = getattr(model, "config", None)
    for place in (config, getattr(config, "text_config", None)):
        sizes = getattr(place, "hidden_size", None) or getattr(place, "hidden_sizes", None)
        if sizes:
            return max(sizes) if isinstance(sizes, (list, tuple)) else int(sizes)
    return None
