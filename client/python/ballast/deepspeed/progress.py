"""An engine's printed lines: steps_per_print and wall_clock_breakdown, in DeepSpeed's log format.

Comes from: ballast.deepspeed.engine. Goes to: stdout of rank 0, ballast.monitor. Source:
deepspeed/runtime/engine.py (_report_progress) and utils/timer.py of 0.19.8. Thread safety: used by
one thread at a time.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

# Timers of an engine by their names in the log, and by DeepSpeed's names in monitors. Gradients go
# out inside step(), so the part of backward that reduces takes no time.
_PARTS = {
    "fwd": "forward",
    "bwd": "backward",
    "bwd_inner": "backward_inner",
    "bwd_allreduce": "backward_allreduce",
    "step": "step",
}
# Phases of a round by their fields of last_report: at this trainer, and the longest of any server.
_PHASES = {
    "push": "push_ns",
    "wait": "wait_ns",
    "pull": "pull_ns",
    "server_collect": "collect_ns",
    "server_vote": "vote_ns",
    "server_step": "step_ns",
}

_UNTIMED = contextlib.nullcontext()


class Progress:
    """Counts and times of one trainer's engine.

    every: steps_per_print, None for never. breakdown: wall_clock_breakdown. rank: 0 prints.
    """

    def __init__(
        self,
        every: float | None,
        breakdown: bool,
        rank: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.breakdown = breakdown
        self._every = None if every is None or math.isinf(every) else int(every)
        self._rank = rank
        self._clock = clock
        self._micro: dict[str, float] = {}  # seconds since the last micro-batch ended
        self._round: dict[str, float] = {}
        self._held: str | None = None  # the line of the micro-batch that ends the round

    def timed(self, part: str) -> AbstractContextManager[None]:
        """Adds the time of the block to a timer: "fwd", "bwd" or "step"."""
        if not self.breakdown:
            return _UNTIMED
        return _Timer(self._clock, self._micro, part)

    def micro_batch_ended(self, ends_round: bool = False) -> None:
        """Prints the timers of a micro-batch, and restarts them.

        ends_round: round_ended() prints them, in the same write.
        """
        if not self.breakdown:
            return
        taken, self._micro = self._filled(self._micro), {}
        for part, seconds in taken.items():
            self._round[part] = self._round.get(part, 0.0) + seconds
        shown = _times({f"{part}_microstep": s * 1e3 for part, s in taken.items()})
        if ends_round:
            self._held = shown
        else:
            self._print(shown)

    def round_ended(self, report: Mapping[str, Any]) -> dict[str, float]:
        """Prints the timers of a round, and its phases. Returns them by monitors' names, in ms.

        report: the optimizer's last_report. Called after the last micro-batch's end.
        """
        if not self.breakdown:
            return {}
        taken, self._round = self._filled(self._round), {}
        parts = {part: seconds * 1e3 for part, seconds in taken.items()}
        phases = {name: report.get(field, 0) * 1e-6 for name, field in _PHASES.items()}
        held, self._held = self._held, None
        self._print(*([] if held is None else [held]), _times({**parts, **phases}))
        return {**{_PARTS[part]: ms for part, ms in parts.items()}, **phases}

    def due(self, step: int) -> bool:
        """Whether step_ended() prints: the number of rounds is a multiple of steps_per_print."""
        return self._every is not None and step % self._every == 0

    def step_ended(self, step: int, skipped: int, lr: Sequence[Any], mom: Sequence[Any]) -> None:
        """Prints a line where the number of rounds is a multiple of steps_per_print."""
        if self.due(step):
            self._print(f"step={step}, skipped={skipped}, lr={list(lr)}, mom={list(mom)}")

    def _filled(self, taken: Mapping[str, float]) -> dict[str, float]:
        return {
            "fwd": taken.get("fwd", 0.0),
            "bwd": taken.get("bwd", 0.0),
            "bwd_inner": taken.get("bwd", 0.0),
            "bwd_allreduce": 0.0,
            "step": taken.get("step", 0.0),
        }

    def _print(self, *lines: str) -> None:
        if self._rank == 0:
            print("\n".join(f"[Rank 0] {line}" for line in lines), flush=True)


def _times(milliseconds: Mapping[str, float]) -> str:
    return " | ".join(["time (ms)", *(f"{name}: {ms:.2f}" for name, ms in milliseconds.items())])


class _Timer:
    """Adds the time of a block to its part of `taken`."""

    def __init__(self, clock: Callable[[], float], taken: dict[str, float], part: str) -> None:
        self._clock, self._taken, self._part = clock, taken, part

    def __enter__(self) -> None:
        self._began = self._clock()

    def __exit__(self, *error: object) -> None:
        self._taken[self._part] = self._taken.get(self._part, 0.0) + self._clock() - self._began
