"""deepspeed.runtime.lr_schedules: schedules that a script builds on an optimizer of its own.

Comes from: scripts, as `WarmupLR(optimizer, warmup_num_steps=100)`, and as a function for
initialize(lr_scheduler=...). Goes to: the optimizer's param_groups. A `scheduler` of the ds_config
does not come here: the service moves it. Thread safety: as the optimizer.
Source: deepspeed/runtime/lr_schedules.py of 0.19.8; docs/schedules.md has the formulas.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from ballast import schedules
from ballast.deepspeed.schedule import ServiceSchedule
from ballast.errors import BadArgument, at_border, warn
from ballast.schedule_rates import cosine_ratio, rates

LR_SCHEDULE = "lr_schedule"
LR_RANGE_TEST, ONE_CYCLE = "LRRangeTest", "OneCycle"
WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
WARMUP_LOG_RATE, WARMUP_LINEAR_RATE = "log", "linear"
# DeepSpeed has a constant of each argument: WARMUP_MIN_LR is "warmup_min_lr".
globals().update({
    field.name.upper(): field.name
    for kind in schedules.ALL.values() for field in dataclasses.fields(kind)
    if field.name != "cycle_momentum"
})  # fmt: skip


class _Kind(type):
    """isinstance() of the schedule of a ds_config, which the service moves."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, ServiceSchedule):
            here = globals()[type(instance.schedule).__name__]
            return issubclass(here, cls)
        return super().__instancecheck__(instance)


class _Scheduler(metaclass=_Kind):
    """The common part of the five: a position, and the optimizer whose rates it decides.

    optimizer: of torch or Ballast, or an object whose attribute `optimizer` is one. The arguments
    are those of the class of this name in ballast.schedules, and after them last_batch_iteration.
    Raises BadHyperparam for a value out of range.
    """

    _of: ClassVar[type[schedules.Schedule]]

    @at_border
    def __init__(
        self, optimizer: Any, *arguments: Any, last_batch_iteration: int = -1, **named: Any
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = getattr(optimizer, "optimizer", optimizer)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise BadArgument(f"optimizer is a {type(optimizer).__name__}, not an optimizer")
        fields = [field.name for field in dataclasses.fields(self._of)]
        if len(arguments) > len(fields):
            last_batch_iteration = arguments[len(fields)]
        self.optimizer = optimizer
        self.last_batch_iteration = last_batch_iteration
        named.update(zip(fields, arguments, strict=False))
        if named.get("warmup_type", "log") not in ("log", "linear"):
            warn(f"warmup_type {named['warmup_type']!r} is unknown; log takes its place")
            named["warmup_type"] = "log"
        self._schedule = self._of(**named)
        self._own = [_own(group) for group in optimizer.param_groups]
        self._check_groups()
        self._last_lr = [rate for rate, *_ in self._own]
        if last_batch_iteration == -1:
            self._apply()

    def get_lr(self) -> list[float]:
        """The learning rate of each group at this position, for the next step."""
        return [rate for rate, *_ in self._rates()]

    def get_last_lr(self) -> list[Any]:
        """The learning rates that the groups were given last."""
        return self._last_lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Moves by one, or to a position, and gives the groups its rates."""
        if last_batch_iteration is None:
            last_batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = last_batch_iteration
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The rates follow with the next step(), as in DeepSpeed."""
        self.last_batch_iteration = state_dict["last_batch_iteration"]

    @property
    def warmup_type(self) -> str:
        """How it rises: log or linear."""
        return str(self._argument("warmup_type"))

    @property
    def warmup_num_steps(self) -> int:
        """Rounds of the rise, at least 2."""
        return max(2, int(self._argument("warmup_num_steps")))

    def _argument(self, name: str) -> Any:
        if not hasattr(self._schedule, name):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self._schedule, name)

    def _each(self, name: str) -> list[float]:
        """An argument as a value per group; None: each group's own rate."""
        value = getattr(self._schedule, name)
        if value is None:
            return [rate for rate, *_ in self._own]
        return list(value) if isinstance(value, tuple) else [value] * len(self._own)

    def _rates(self) -> list[tuple[float, float, float]]:
        at, own = self.last_batch_iteration, self._own
        return [rates(self._schedule, at, i, own[i], "deepspeed") for i in range(len(own))]

    def _apply(self) -> None:
        groups = self.optimizer.param_groups
        for group, (rate, beta1, beta2) in zip(groups, self._rates(), strict=False):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
            if self._schedule.sets_betas and "betas" in self.optimizer.defaults:
                group["betas"] = (beta1, beta2)
        self._last_lr = [group["lr"] for group in groups]

    def _check_groups(self) -> None:
        wanted, has = self._schedule.groups, len(self._own)
        if wanted not in (0, has):
            raise BadArgument(f"the lists have {wanted} values, and the optimizer has {has} groups")
        if self._schedule.sets_betas and "betas" not in self.optimizer.defaults:
            warn("OneCycle: the optimizer has no betas, so only its learning rate cycles")


class WarmupLR(_Scheduler):
    """Up from warmup_min_lr to warmup_max_lr, or each group's own rate, and constant from there."""

    _of = schedules.WarmupLR

    @property
    def min_lrs(self) -> list[float]:
        return self._each("warmup_min_lr")

    @property
    def max_lrs(self) -> list[float]:
        return self._each("warmup_max_lr")


class WarmupDecayLR(WarmupLR):
    """As WarmupLR, and then linearly down to 0 at total_num_steps."""

    _of = schedules.WarmupDecayLR


class WarmupCosineLR(_Scheduler):
    """Each group's own rate times a rise from warmup_min_ratio to 1, then a cosine."""

    _of = schedules.WarmupCosineLR

    def get_lr_ratio(self) -> float:
        """The factor at this position."""
        assert isinstance(self._schedule, schedules.WarmupCosineLR)
        return cosine_ratio(self._schedule, self.last_batch_iteration)


class LRRangeTest(_Scheduler):
    """A rate that grows without end."""

    _of = schedules.LRRangeTest


class OneCycle(_Scheduler):
    """A cycle of the rate and, the other way round, of beta1; beta2 becomes 0.99, as there."""

    _of = schedules.OneCycle

    @property
    def min_lrs(self) -> list[float]:
        return self._each("cycle_min_lr")

    @property
    def max_lrs(self) -> list[float]:
        return self._each("cycle_max_lr")

    @property
    def total_size(self) -> float:
        """Rounds of the cycle."""
        assert isinstance(self._schedule, schedules.OneCycle)
        first, second = self._schedule.cycle_first_step_size, self._schedule.cycle_second_step_size
        return first + (first if second is None else second)

    @property
    def step_ratio(self) -> float:
        """The share of the cycle in which the rate rises."""
        return float(self._argument("cycle_first_step_size")) / self.total_size

    def get_mom(self) -> list[tuple[float, float]] | None:
        """The betas of each group at this position; None without cycle_momentum."""
        if not self._schedule.sets_betas or "betas" not in self.optimizer.defaults:
            return None
        return [(beta1, beta2) for _, beta1, beta2 in self._rates()]


def _own(group: dict[str, Any]) -> tuple[float, float, float]:
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    return float(group["lr"]), float(beta1), float(beta2)
