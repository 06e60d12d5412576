"""A loss scale that the service moves, as DeepSpeed's fp16 section describes it.

Comes from: scripts (`bt.AdamW(..., loss_scale="dynamic")`) and the fp16 section of a ds_config.
Goes to: ballast.config, ballast.session. docs/schedules.md says how the scale moves. Immutable
values.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from ballast.errors import BadHyperparam

POWER_MAX = 126  # The scale and its first growth are finite in fp32.
MINIMUM_MIN = 2.0**-20  # Below it, dividing by the scale could overflow fp32 by itself.


@dataclasses.dataclass(frozen=True)
class DynamicLossScale:
    """Halves after overflows, and doubles after loss_scale_window clean rounds.

    Names and defaults of the ds_config's fp16 section. initial_scale_power: the first scale is 2 to
    this power. hysteresis: overflows until the scale falls. consecutive_hysteresis: every clean
    round refills it, not only a growth. min_loss_scale: an overflow there halts the job.
    Raises BadHyperparam, as the service does, for values that cannot be.
    """

    initial_scale_power: int = 16
    loss_scale_window: int = 1000
    hysteresis: int = 2
    consecutive_hysteresis: bool = False
    min_loss_scale: float = 1

    def __post_init__(self) -> None:
        for name in ("initial_scale_power", "loss_scale_window", "hysteresis"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        object.__setattr__(self, "min_loss_scale", _number("min_loss_scale", self.min_loss_scale))
        if not isinstance(self.consecutive_hysteresis, bool):
            raise BadHyperparam(
                f"consecutive_hysteresis is {self.consecutive_hysteresis!r}; it must be True or "
                "False"
            )
        if not 0 <= self.initial_scale_power <= POWER_MAX:
            raise BadHyperparam(
                f"initial_scale_power must be 0 to {POWER_MAX}, got {self.initial_scale_power}; 16 "
                "is the default"
            )
        _positive("loss_scale_window", self.loss_scale_window, "1000 is the default")
        _positive("hysteresis", self.hysteresis, "1 lowers the scale at every overflow")
        self._check_minimum()

    def _check_minimum(self) -> None:
        initial, lowest = 2.0**self.initial_scale_power, self.min_loss_scale
        if not 0 < lowest <= initial:
            raise BadHyperparam(
                "min_loss_scale must be above 0 and at most the initial scale "
                f"{initial:g}, got {lowest:g}; lower it or raise initial_scale_power"
            )
        if lowest < MINIMUM_MIN:
            raise BadHyperparam(
                f"min_loss_scale must be at least {MINIMUM_MIN:g}, got {lowest:g}; 1 is the default"
            )


def _whole(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise BadHyperparam(f"{name} is {value!r}; it must be a whole number") from None
    if abs(number) >= 2**63:
        raise BadHyperparam(f"{name} is {number}; it must be below 2^63")
    return number


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: odd tensors
        raise BadHyperparam(f"{name} is {value!r}; it must be a number") from None


def _positive(name: str, value: int, more: str) -> None:
    if value <= 0:
        raise BadHyperparam(f"{name} must be a positive integer, got {value}; {more}")
