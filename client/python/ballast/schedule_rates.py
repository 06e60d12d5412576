"""Learning rates and betas of DeepSpeed's schedules, computed here, as the service computes them.

Comes from: ballast.deepspeed.lr_schedules, and tests of the servers. docs/schedules.md has the
formulas. Every operation is in double, in the order of that page, so that the service gives the
same bits. Pure functions; needs no torch.
"""

from __future__ import annotations

import math
from typing import Any

from ballast import schedules

Rates = tuple[float, float, float]  # lr, beta1, beta2


def rates(s: schedules.Schedule, index: int, group: int, own: Rates, profile: str) -> Rates:
    """The values with which a group steps.

    index: DeepSpeed's last_batch_iteration, -1 before the first applied round. group: its number,
    for arguments given as lists. own: the group's initial options. profile: of the job; with
    "deepspeed" OneCycle sets beta2 to 0.99. Source: deepspeed/runtime/lr_schedules.py of 0.19.8.
    """
    if isinstance(s, schedules.OneCycle):
        lr, beta1 = _cycle(s, index, group)
        if not s.cycle_momentum:
            return lr, *own[1:]
        return lr, beta1, 0.99 if profile == "deepspeed" else own[2]
    formula = {"WarmupCosineLR": _cosine, "LRRangeTest": _range_test}.get(s.name, _warmup)
    return formula(s, index, group, own[0]), own[1], own[2]


def _of(values: Any, group: int) -> Any:
    return values[group] if isinstance(values, (tuple, list)) else values


def _rise(kind: str, i: int, steps: float) -> float:
    return i / steps if kind == "linear" else (1.0 / math.log(steps)) * math.log(i + 1)


def _warmup(s: Any, i: int, group: int, own: float) -> float:
    low, steps = _of(s.warmup_min_lr, group), max(2.0, s.warmup_num_steps)
    high = own if s.warmup_max_lr is None else _of(s.warmup_max_lr, group)
    if i < 0:
        return low
    if i < steps:
        share = _rise(s.warmup_type, i, steps)
    elif isinstance(s, schedules.WarmupDecayLR):
        share = max(0.0, (s.total_num_steps - i) / max(1.0, s.total_num_steps - steps))
    else:
        share = 1.0
    return low + (high - low) * share


def cosine_ratio(s: schedules.WarmupCosineLR, i: int) -> float:
    """The factor of a group's own rate at index i."""
    steps = max(2.0, s.warmup_num_steps)
    if i < 0:
        return 0.0
    if i < steps:
        rise = _rise(s.warmup_type, i, steps)
        return s.warmup_min_ratio + rise * (1.0 - s.warmup_min_ratio)
    progress = min(1.0, (i - steps + 1) / max(1.0, s.total_num_steps - steps))
    wave = (1 + math.cos(math.pi * progress)) / 2
    return max(0.0, s.cos_min_ratio + (1.0 - s.cos_min_ratio) * wave)


def _cosine(s: Any, i: int, group: int, own: float) -> float:
    return own * cosine_ratio(s, i)


def _range_test(s: Any, i: int, group: int, own: float) -> float:
    low = _of(s.lr_range_test_min_lr, group)
    k = (i + 1) / s.lr_range_test_step_size
    k = math.floor(k) if s.lr_range_test_staircase else k
    return low if i < 0 else low * (1 + s.lr_range_test_step_rate * k)


def _height(s: schedules.OneCycle, at: int, first: float, second: float) -> float:
    """Of the cycle after `at` rounds: 0 at its ends, 1 at its peak."""
    total = first + second
    x, peak = 1.0 + at / total - math.floor(1 + at / total), first / total
    rising = x <= peak
    stairs: float = s.cycle_first_stair_count
    if not rising and s.cycle_second_stair_count is not None:
        stairs = s.cycle_second_stair_count
    if stairs <= 0:
        return x / peak if rising else (x - 1) / (peak - 1)
    place = at % total
    stair = place * stairs / first if place <= first else (total - place) * stairs / second
    return math.floor(stair) / stairs


def _cycle(s: schedules.OneCycle, i: int, group: int) -> tuple[float, float]:
    """The learning rate and beta1."""
    first = float(s.cycle_first_step_size)
    second = first if s.cycle_second_step_size is None else float(s.cycle_second_step_size)
    total = first + second
    low, high = _of(s.cycle_min_lr, group), _of(s.cycle_max_lr, group)
    slow, fast = _of(s.cycle_min_mom, group), _of(s.cycle_max_mom, group)
    if i < 0:
        return low, slow
    if i < total:
        height = _height(s, i + 1, first, second)
        return low + (high - low) * height, fast - (fast - slow) * height
    if s.decay_step_size == 0:
        return low, fast
    k = (i - total + 1) / s.decay_step_size
    return low / (1 + s.decay_lr_rate * k), fast * (1 + s.decay_mom_rate * k)
