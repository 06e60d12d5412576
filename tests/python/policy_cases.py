"""10,000 random configurations of schedules and loss scalers, and how our code answers them.

Comes from: a seed. Goes to: test_policy_vectors.py, which compares with the recorded answers of
DeepSpeed's classes; record_policy_vectors.py, which records them.

Only random.Random.random() is drawn from, which every Python gives alike, and every number is a
short decimal, so that a case is the same everywhere.
"""

from __future__ import annotations

import random
import struct
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving import REPO

SEED = 20261124
CASES = 10_000
DRIVER = REPO / "build" / "release" / "tests" / "policy_driver"
VECTORS = Path(__file__).resolve().parent / "policy_vectors.txt"
REFUSED = "refused"
# A case ends at a larger scale: DeepSpeed's grows without end, ours to 2^127.
SCALE_SHOWN_MAX = 2.0**126
_REFUSED_COUNT = 0xFFFFFFFF


@dataclass(frozen=True)
class Case:
    """A configuration, by DeepSpeed's names, and the events of its run."""

    kind: str  # the class
    arguments: dict[str, Any]
    groups: tuple[tuple[float, float, float], ...] = ()  # lr, beta1, beta2 of each
    steps: int = 0  # of a schedule, after construction
    flags: str = ""  # of a scaler: 1 is an overflow

    def line(self) -> str:
        """The line that policy_driver reads."""
        words = [self.kind]
        if self.groups:
            columns = zip(("lr", "beta1", "beta2"), zip(*self.groups))
            words += [f"{name}={_text(list(values))}" for name, values in columns]
            words.append(f"steps={self.steps}")
        else:
            words.append(f"flags={self.flags}")
        arguments = self.arguments.items()
        words += [f"{name}={_text(value)}" for name, value in arguments if value is not None]
        return " ".join(words)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(f"{one!r}," for one in value)
    if isinstance(value, bool):
        return str(int(value))
    return str(value)


class _Draw:
    """Random choices, all made from random()."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, share: float) -> bool:
        return self._random() < share

    def integer(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))

    def one_of(self, values: Sequence[Any]) -> Any:
        return values[self.integer(0, len(values) - 1)]

    def number(self) -> float:
        if self.chance(0.3):
            return self.one_of((0.0, 1e-4, 0.002, 0.005, 0.5, 5.0))
        return float(f"{self.integer(1, 999)}e{self.integer(-9, -2)}")

    def per_group(self, groups: int) -> Any:
        if self.chance(0.5):
            return self.number()
        wrong = 1 if self.chance(0.01) else 0
        return [self.number() for _ in range(groups + wrong)]

    def size(self, values: Sequence[int]) -> int:
        """One of the values; now and then a refused one."""
        return self.one_of((0, -1)) if self.chance(0.01) else self.one_of(values)


def _steps(draw: _Draw) -> int:
    if draw.chance(0.01):
        return 10_000
    return draw.one_of((1, 2, 10, 100, 300, 1000))


def _warmup(draw: _Draw, groups: int) -> dict[str, Any]:
    arguments = {
        "warmup_min_lr": draw.per_group(groups),
        "warmup_max_lr": draw.per_group(groups),
        "warmup_num_steps": draw.size((1, 2, 3, 10, 100, 1000)),
        "warmup_type": draw.one_of(("log", "linear")),
    }
    if draw.chance(0.3):
        del arguments["warmup_max_lr"]
    return arguments


def _decay(draw: _Draw, groups: int) -> dict[str, Any]:
    arguments = _warmup(draw, groups)
    arguments.setdefault("warmup_max_lr", 0.001)  # its default is a number, not the group's rate
    return {"total_num_steps": draw.one_of((1, 5, 50, 500, 2000)), **arguments}


def _cosine(draw: _Draw, groups: int) -> dict[str, Any]:
    return {
        "total_num_steps": draw.one_of((1, 5, 50, 500, 2000)),
        "warmup_min_ratio": draw.number(),
        "warmup_num_steps": draw.size((1, 2, 3, 10, 100, 1000)),
        "cos_min_ratio": draw.number(),
        "warmup_type": draw.one_of(("log", "linear")),
    }


def _range_test(draw: _Draw, groups: int) -> dict[str, Any]:
    return {
        "lr_range_test_min_lr": draw.per_group(groups),
        "lr_range_test_step_size": draw.size((1, 3, 200, 2000)),
        "lr_range_test_step_rate": draw.number(),
        "lr_range_test_staircase": draw.chance(0.5),
    }


def _one_cycle(draw: _Draw, groups: int) -> dict[str, Any]:
    return {
        "cycle_min_lr": draw.per_group(groups),
        "cycle_max_lr": draw.per_group(groups),
        "decay_lr_rate": draw.one_of((0.0, draw.number())),
        "cycle_first_step_size": draw.size((1, 2, 7, 50, 2000)),
        "cycle_second_step_size": draw.one_of((None, None, 0, 1, 5, 33, 2000, -1))
        if draw.chance(0.2)
        else draw.one_of((None, 1, 5, 33, 2000)),
        "cycle_first_stair_count": draw.one_of((0, 0, 1, 3, 10)),
        "cycle_second_stair_count": draw.one_of((None, 0, 2, 5)),
        "decay_step_size": draw.one_of((0, 1, 7, 100)),
        "cycle_momentum": draw.chance(0.7),
        "cycle_min_mom": draw.per_group(groups),
        "cycle_max_mom": draw.per_group(groups),
        "decay_mom_rate": draw.one_of((0.0, draw.number())),
    }


def _scaler(draw: _Draw) -> Case:
    power = draw.integer(0, 32)
    minimum = min(2.0**power, draw.one_of((1.0, 0.25, 1.5, 3.0, 2.0 ** draw.integer(0, 8))))
    share = draw.one_of((0.01, 0.1, 0.3, 0.6))
    arguments = {
        "initial_scale_power": power,
        "loss_scale_window": draw.one_of((1, 2, 3, 4, 10, 50)),
        "hysteresis": draw.integer(1, 4),
        "consecutive_hysteresis": draw.chance(0.5),
        "min_loss_scale": minimum,
    }
    flags = "".join("1" if draw.chance(share) else "0" for _ in range(_steps(draw)))
    return Case("DynamicLossScaler", arguments, flags=flags)


_SCHEDULES = {
    "WarmupLR": _warmup,
    "WarmupDecayLR": _decay,
    "WarmupCosineLR": _cosine,
    "LRRangeTest": _range_test,
    "OneCycle": _one_cycle,
}
# The values of DeepSpeed's tutorials, whole runs of them.
_OWN = ((1e-3, 0.9, 0.999), (3e-4, 0.8, 0.95))
_SAMPLES = (
    Case(
        "LRRangeTest",
        {
            "lr_range_test_min_lr": 1e-4,
            "lr_range_test_step_size": 200,
            "lr_range_test_step_rate": 5.0,
            "lr_range_test_staircase": False,
        },
        _OWN,
        10_000,
    ),
    Case(
        "OneCycle",
        {
            "cycle_min_lr": 0.002,
            "cycle_max_lr": 0.005,
            "decay_lr_rate": 0.0,
            "cycle_first_step_size": 2000,
            "cycle_second_step_size": 2000,
            "cycle_first_stair_count": 0,
            "cycle_second_stair_count": None,
            "decay_step_size": 0,
            "cycle_momentum": True,
            "cycle_min_mom": 0.8,
            "cycle_max_mom": 0.9,
            "decay_mom_rate": 0.0,
        },
        _OWN,
        10_000,
    ),
)


def cases() -> Iterator[Case]:
    """The samples, then random cases: CASES in all."""
    yield from _SAMPLES
    draw = _Draw(SEED)
    for _ in range(CASES - len(_SAMPLES)):
        kind = draw.one_of((*_SCHEDULES, "DynamicLossScaler"))
        if kind == "DynamicLossScaler":
            yield _scaler(draw)
            continue
        count = draw.integer(1, 3)
        groups = tuple(
            (draw.number(), draw.integer(0, 99) / 100, draw.integer(0, 999) / 1000)
            for _ in range(count)
        )
        yield Case(kind, _SCHEDULES[kind](draw, count), groups, _steps(draw))


def our_answers(asked: Sequence[Case]) -> Iterator[list[float] | None]:
    """What our code says about each case: all its doubles in order, or None where it refuses."""
    lines = "".join(case.line() + "\n" for case in asked)
    answer = subprocess.run(
        [str(DRIVER)], input=lines.encode(), capture_output=True, check=True, timeout=300
    ).stdout
    at = 0
    while at < len(answer):
        (count,) = struct.unpack_from("=I", answer, at)
        at += 4
        if count == _REFUSED_COUNT:
            yield None
            continue
        yield list(struct.unpack_from(f"={count}d", answer, at))
        at += 8 * count


def digest(values: Sequence[float] | None) -> str:
    """The vectors' record of a case: a checksum of the bits of all its doubles."""
    if values is None:
        return REFUSED
    return f"{zlib.crc32(struct.pack(f'<{len(values)}d', *values)):08x}"
