"""DeepSpeed's schedules once more, in Python: docs/schedules.md, formula by formula.

Comes from: test_schedules.py. Every operation is in double, in the order of the page, so that the
service must give the same bits.
"""

from __future__ import annotations

import math
from typing import Any

from ballast import schedules

Rates = tuple[float, float, float]  # lr, beta1, beta2


def _of(values: Any, group: int) -> float:
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


def _cosine(s: Any, i: int, group: int, own: float) -> float:
    steps = max(2.0, s.warmup_num_steps)
    if i < 0:
        return own * 0
    if i < steps:
        return own * (
            s.warmup_min_ratio + _rise(s.warmup_type, i, steps) * (1.0 - s.warmup_min_ratio)
        )
    progress = min(1.0, (i - steps + 1) / max(1.0, s.total_num_steps - steps))
    wave = (1 + math.cos(math.pi * progress)) / 2
    return own * max(0.0, s.cos_min_ratio + (1.0 - s.cos_min_ratio) * wave)


def _range_test(s: Any, i: int, group: int, own: float) -> float:
    low = _of(s.lr_range_test_min_lr, group)
    k = (i + 1) / s.lr_range_test_step_size
    k = math.floor(k) if s.lr_range_test_staircase else k
    return low if i < 0 else low * (1 + s.lr_range_test_step_rate * k)


def _height(s: Any, rounds: int, first: float, total: float) -> float:
    """Without stairs."""
    x = 1.0 + rounds / total - math.floor(1 + rounds / total)
    peak = first / total
    return x / peak if x <= peak else (x - 1) / (peak - 1)


def _cycle(s: Any, i: int, group: int, own: Rates, profile: str) -> Rates:
    first = s.cycle_first_step_size
    second = first if s.cycle_second_step_size is None else s.cycle_second_step_size
    total = first + second
    low, high = _of(s.cycle_min_lr, group), _of(s.cycle_max_lr, group)
    slow, fast = _of(s.cycle_min_mom, group), _of(s.cycle_max_mom, group)
    if i < 0:
        lr, beta1 = low, slow
    elif i < total:
        height = _height(s, i + 1, first, total)
        lr, beta1 = low + (high - low) * height, fast - (fast - slow) * height
    elif s.decay_step_size == 0:
        lr, beta1 = low, fast
    else:
        k = (i - total + 1) / s.decay_step_size
        lr, beta1 = low / (1 + s.decay_lr_rate * k), fast * (1 + s.decay_mom_rate * k)
    return lr, beta1, 0.99 if profile == "deepspeed" else own[2]


def rates(s: schedules.Schedule, i: int, group: int, own: Rates, profile: str) -> Rates:
    """What `group`, whose own values are `own`, steps with at index i."""
    if isinstance(s, schedules.OneCycle):
        return _cycle(s, i, group, own, profile)
    formula = {"WarmupCosineLR": _cosine, "LRRangeTest": _range_test}.get(s.name, _warmup)
    return formula(s, i, group, own[0]), own[1], own[2]
