"""Fills "auto": each row of the table says which training argument has the value.

Comes from: ballast.ds_config.check and ballast.hf. Goes to: the same. Source of the rules:
transformers 5.23, integrations/deepspeed.py. Thread safety: immutable values, pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ballast.ds_config.arguments import Arguments
from ballast.ds_config.kinds import WrongValue

if TYPE_CHECKING:
    from ballast.ds_config.row import Row


@dataclasses.dataclass(frozen=True)
class Filling:
    """How one key's "auto" is filled.

    source: the names of the arguments, for texts. value: their value, or None. matched: whether
    a value that the file has must be the same; `loosely`: unless auto_find_batch_size is set.
    stage3: fills only where the file has stage 3.
    """

    source: str
    value: Callable[[Arguments], Any]
    matched: bool = True
    loosely: bool = False
    stage3: bool = False

    def must_match(self, arguments: Arguments) -> bool:
        return self.matched and not (self.loosely and arguments.auto_find_batch_size)


def _betas(arguments: Arguments) -> list[float] | None:
    if arguments.adam_beta1 is None or arguments.adam_beta2 is None:
        return None
    return [arguments.adam_beta1, arguments.adam_beta2]


def _by_hidden_size(rule: Callable[[int], int], stage3: bool) -> Filling:
    def value(arguments: Arguments) -> int | None:
        return None if arguments.hidden_size is None else rule(arguments.hidden_size)

    return Filling("the model's hidden size", value, matched=False, stage3=stage3)


TRAIN_BATCH = Filling(
    "world_size x per_device_train_batch_size x gradient_accumulation_steps",
    Arguments.batch,
    loosely=True,
)
MICRO_BATCH = Filling(
    "per_device_train_batch_size", lambda a: a.per_device_train_batch_size, loosely=True
)
ACCUMULATION = Filling("gradient_accumulation_steps", lambda a: a.gradient_accumulation_steps)
CLIP = Filling("max_grad_norm", lambda a: a.max_grad_norm)
LR = Filling("learning_rate", lambda a: a.learning_rate)
BETAS = Filling("adam_beta1 and adam_beta2", _betas)
EPS = Filling("adam_epsilon", lambda a: a.adam_epsilon)
WEIGHT_DECAY = Filling("weight_decay", lambda a: a.weight_decay)
FP16 = Filling("fp16", lambda a: a.fp16)
BF16 = Filling("bf16", lambda a: a.bf16)
MIN_LR = Filling("the constant 0", lambda a: 0, matched=False)
WARMUP = Filling("warmup_steps", Arguments.warmup)
TOTAL = Filling("the number of training steps", lambda a: a.num_training_steps)
REDUCE_BUCKET = _by_hidden_size(lambda size: size * size, False)
PREFETCH_BUCKET = _by_hidden_size(lambda size: int(0.9 * size * size), True)
PERSISTENCE = _by_hidden_size(lambda size: 10 * size, True)


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A value of the file next to another one of the arguments."""

    path: str
    written: Any
    wanted: Any
    source: str


@dataclasses.dataclass(frozen=True)
class Filled:
    """values: a configuration. sources: the Filling.source of each filled path."""

    values: dict[str, Any]
    sources: Mapping[str, str]
    mismatches: tuple[Mismatch, ...]


def fill(values: Mapping[str, Any], rows: Iterable[Row], arguments: Arguments) -> Filled:
    """A copy of `values` with "auto" replaced where the arguments give a value.

    Only names in their own place count: the Trainer fills no second names. `values` stays
    unchanged.
    """
    result = _copied(values)
    sources: dict[str, str] = {}
    mismatches = []
    zero = _inside(result, ["zero_optimization"]) or {}
    for row in rows:
        *sections, name = row.path.split(".")
        place = _inside(result, sections)
        if row.filling is None or place is None or place.get(name) is None:
            continue
        wanted = row.filling.value(arguments)
        if wanted is None or (row.filling.stage3 and zero.get("stage") != 3):
            continue
        if place[name] == "auto":
            place[name] = wanted
            sources[row.path] = row.filling.source
        elif row.filling.must_match(arguments) and _differ(row, place[name], wanted):
            mismatches.append(Mismatch(row.path, place[name], wanted, row.filling.source))
    return Filled(result, sources, tuple(mismatches))


def _inside(values: dict[str, Any], sections: list[str]) -> dict[str, Any] | None:
    found: Any = values
    for section in sections:
        found = found.get(section) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _copied(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }


def _differ(row: Row, written: Any, wanted: Any) -> bool:
    """A value that the key does not take is no mismatch: it is refused for itself."""
    try:
        return bool(row.kind.read(written) != row.kind.read(wanted))
    except WrongValue:
        return False
