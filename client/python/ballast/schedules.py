"""DeepSpeed's schedules of learning rates as plain data; the service evaluates them round by round.

Comes from: scripts (`bt.AdamW(..., lr_schedule=WarmupLR(warmup_num_steps=100))`) and the scheduler
section of a ds_config. Goes to: ballast.config, ballast.session. docs/schedules.md has the
formulas. Names and defaults are those of deepspeed/runtime/lr_schedules.py, version 0.19.8, without
last_batch_iteration: the service knows the position. Immutable values; needs no torch.

An argument per group takes one number for all groups or a list with one per param group.
Arguments are checked when the object is made, with BadHyperparam; the servers check once more.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

from ballast.errors import BadHyperparam

PerGroup = float | Sequence[float]

# No learning rate, no rate of decay and no count of steps is larger.
ARGUMENT_MAX = 1e18
_INTEGER_MAX = 2**53  # Whole numbers up to here are exact in a double.
_NEGATIVE = ("decay_mom_rate",)  # May be below 0.


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What all schedules share. Each field is an argument of DeepSpeed's class of the same name."""

    # By kind of value; all other fields are numbers.
    _whole: ClassVar[tuple[str, ...]] = ()
    _sizes: ClassVar[tuple[str, ...]] = ()
    _flags: ClassVar[tuple[str, ...]] = ()
    _lists: ClassVar[tuple[str, ...]] = ()
    _momenta: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, self._read(field.name, value))
        self._check()
        self._check_lengths()

    @property
    def name(self) -> str:
        """DeepSpeed's name of the schedule, as in scheduler.type."""
        return type(self).__name__

    @property
    def groups(self) -> int:
        """Values of its lists, which is the number of param groups that it is for; 0: any."""
        lists = [v for v in dataclasses.asdict(self).values() if isinstance(v, tuple)]
        return len(lists[0]) if lists else 0

    @property
    def sets_betas(self) -> bool:
        """Whether it also decides the betas."""
        return False

    def arguments(self) -> dict[str, float | list[float] | str]:
        """The arguments by name for the C++ client; flags as 0 and 1, without those left out."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {n: _sent(value) for n, value in given.items() if value is not None}

    def _check(self) -> None:
        """The checks of one schedule in addition to ranges."""

    def _read(self, name: str, value: Any) -> Any:
        if name == "warmup_type":
            if value not in ("log", "linear"):
                raise BadHyperparam(f"{name} is {value!r}; it must be log or linear")
            return value
        if name in self._flags:
            if not isinstance(value, bool):
                raise BadHyperparam(f"{name} is {value!r}; it must be True or False")
            return value
        if name in self._lists and _is_list(value):
            if len(value) == 0:
                raise BadHyperparam(
                    f"{name} is an empty list; give one number for all groups or one per group"
                )
            return tuple(self._in_range(name, _number(name, one)) for one in value)
        number = _whole_number(name, value) if name in self._whole else _number(name, value)
        return self._in_range(name, number)

    def _in_range(self, name: str, value: float) -> float:
        if name in self._momenta:
            if self.sets_betas and not 0 <= value < 1:
                raise BadHyperparam(f"{name} must be in [0, 1), got {value:g}; 0.9 is usual")
            return value
        if name in self._sizes:
            return value  # Their own checks say more.
        low = -ARGUMENT_MAX if name in _NEGATIVE else 0.0
        if not low <= value <= ARGUMENT_MAX:
            raise BadHyperparam(
                f"{name} must be from {low:g} to {ARGUMENT_MAX:g}, got {value:g}; rates, ratios "
                "and counts of steps are not negative"
            )
        return value

    def _check_lengths(self) -> None:
        count = self.groups
        for name in self._lists:
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != count:
                raise BadHyperparam(
                    f"expected {count} values for {name}, got {len(value)}; give one number for "
                    "all groups or one per group"
                )


def _is_list(value: Any) -> bool:
    # Tensors and arrays with one element are numbers.
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: odd tensors
        raise BadHyperparam(f"{name} is {value!r}; it must be a number") from None
    if not math.isfinite(number):
        raise BadHyperparam(f"{name} must be a finite number, got {number:g}")
    return number


def _whole_number(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        whole = int(value) if isinstance(value, float) else operator.index(value)
        if whole != value or abs(whole) > _INTEGER_MAX:
            raise ValueError
        return whole
    except (TypeError, ValueError, OverflowError):
        raise BadHyperparam(
            f"{name} is {value!r}; it must be a whole number of at most 2^53"
        ) from None


def _sent(value: Any) -> float | list[float] | str:
    if isinstance(value, str):
        return value
    return [float(one) for one in value] if isinstance(value, tuple) else float(value)


def _check_steps(name: str, steps: int) -> None:
    if steps <= 0:
        raise BadHyperparam(f"{name} must be a positive integer, got {steps}; use 1 or more")


@dataclasses.dataclass(frozen=True)
class WarmupLR(Schedule):
    """From warmup_min_lr to warmup_max_lr in warmup_num_steps rounds, and constant from there.

    warmup_min_lr, warmup_max_lr: a number per group; warmup_max_lr None: the group's own lr.
    warmup_type: "log" or "linear".
    """

    warmup_min_lr: PerGroup = 0.0
    warmup_max_lr: PerGroup | None = None
    warmup_num_steps: int = 1000
    warmup_type: str = "log"

    _whole = _sizes = ("warmup_num_steps",)
    _lists = ("warmup_min_lr", "warmup_max_lr")

    def _check(self) -> None:
        _check_steps("warmup_num_steps", self.warmup_num_steps)


@dataclasses.dataclass(frozen=True)
class WarmupDecayLR(Schedule):
    """As WarmupLR, and then linearly down to warmup_min_lr at round total_num_steps.

    warmup_min_lr, warmup_max_lr: a number per group.
    """

    total_num_steps: int
    warmup_min_lr: PerGroup = 0.0
    warmup_max_lr: PerGroup = 0.001
    warmup_num_steps: int = 1000
    warmup_type: str = "log"

    _whole = ("total_num_steps", "warmup_num_steps")
    _sizes = ("warmup_num_steps",)
    _lists = ("warmup_min_lr", "warmup_max_lr")

    def _check(self) -> None:
        _check_steps("warmup_num_steps", self.warmup_num_steps)


@dataclasses.dataclass(frozen=True)
class WarmupCosineLR(Schedule):
    """Factors of each group's own lr: up from warmup_min_ratio to 1, then a cosine down to
    cos_min_ratio at round total_num_steps."""

    total_num_steps: int
    warmup_min_ratio: float = 0.0
    warmup_num_steps: int = 1000
    cos_min_ratio: float = 0.0001
    warmup_type: str = "log"

    _whole = ("total_num_steps", "warmup_num_steps")
    _sizes = ("warmup_num_steps",)

    def _check(self) -> None:
        _check_steps("warmup_num_steps", self.warmup_num_steps)


@dataclasses.dataclass(frozen=True)
class LRRangeTest(Schedule):
    """A rate that grows without end, to find the largest one that trains.

    lr_range_test_min_lr: a number per group. lr_range_test_staircase: in steps of
    lr_range_test_step_size rounds.
    """

    lr_range_test_min_lr: PerGroup = 1e-3
    lr_range_test_step_size: int = 2000
    lr_range_test_step_rate: float = 1.0
    lr_range_test_staircase: bool = False

    _whole = _sizes = ("lr_range_test_step_size",)
    _flags = ("lr_range_test_staircase",)
    _lists = ("lr_range_test_min_lr",)

    def _check(self) -> None:
        _check_steps("lr_range_test_step_size", self.lr_range_test_step_size)


@dataclasses.dataclass(frozen=True)
class OneCycle(Schedule):
    """One cycle up and down, of the learning rate and, the other way round, of beta1; then a decay.

    cycle_min_lr, cycle_max_lr, cycle_min_mom, cycle_max_mom: a number per group. Step sizes in
    rounds. cycle_second_step_size, cycle_second_stair_count: None: as the first. cycle_momentum:
    False for optimizers without betas.
    """

    cycle_min_lr: PerGroup
    cycle_max_lr: PerGroup
    decay_lr_rate: float = 0.0
    cycle_first_step_size: float = 2000
    cycle_second_step_size: float | None = None
    cycle_first_stair_count: int = 0
    cycle_second_stair_count: int | None = None
    decay_step_size: float = 0
    cycle_momentum: bool = True
    cycle_min_mom: PerGroup = 0.8
    cycle_max_mom: PerGroup = 0.9
    decay_mom_rate: float = 0.0

    _whole = ("cycle_first_stair_count", "cycle_second_stair_count")
    _sizes = ("cycle_first_step_size", "cycle_second_step_size")
    _flags = ("cycle_momentum",)
    _lists = ("cycle_min_lr", "cycle_max_lr", "cycle_min_mom", "cycle_max_mom")
    _momenta = ("cycle_min_mom", "cycle_max_mom")

    @property
    def sets_betas(self) -> bool:
        """Whether it also decides the betas."""
        return self.cycle_momentum

    def _check(self) -> None:
        if self.cycle_first_step_size <= 0:
            raise BadHyperparam(
                f"cycle_first_step_size must be positive, got {self.cycle_first_step_size:g}; use "
                "1 or more"
            )
        second = self.cycle_second_step_size
        if second is not None and second < 0:
            raise BadHyperparam(
                f"cycle_second_step_size must be non-negative, got {second:g}; leave it out to "
                "repeat the first"
            )


ALL: dict[str, type[Schedule]] = {
    kind.__name__: kind for kind in (WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle)
}
