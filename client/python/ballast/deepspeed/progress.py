"""What an engine prints: steps_per_print and wall_clock_breakdown, in the form of DeepSpeed's logs.

Comes from: ballast.deepspeed.engine. Goes to: stdout of rank 0, ballast.monitor. Source:
deepspeed/runtime/engine.py (_report_progress) and utils/timer.py of 0.19.8. Thread safety: used by
one thread at a time.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
# Phases of a round by the fields of last_report that have them: at this trainer, and the longest of
# any server.
_PHASES = {
    "push": "push_ns",
    "wait": "wait_ns",
    "pull": "pull_ns",
    "server_collect": "collect_ns",
    "server_vote": "vote_ns",
    "server_step": "step_ns",
}


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

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the time of the block to a timer: "fwd", "bwd" or "step"."""
        if not self.breakdown:
            yield
            return
        began = self._clock()
        try:
            yield
        finally:
            self._micro[part] = self._micro.get(part, 0.0) + self._clock() - began

    def micro_batch_ended(self) -> None:
        """Prints the timers of a micro-batch, which begin anew."""
        if not self.breakdown:
            return
        taken, self._micro = self._filled(self._micro), {}
        for part, seconds in taken.items():
            self._round[part] = self._round.get(part, 0.0) + seconds
        self._print_times({f"{part}_microstep": s * 1e3 for part, s in taken.items()})

    def round_ended(self, report: Mapping[str, Any]) -> dict[str, float]:
        """Prints the timers of a round, and its phases. Returns them by monitors' names, in ms.

        report: the optimizer's last_report. Called behind the last micro-batch's end.
        """
        if not self.breakdown:
            return {}
        taken, self._round = self._filled(self._round), {}
        parts = {part: seconds * 1e3 for part, seconds in taken.items()}
        phases = {name: report.get(field, 0) * 1e-6 for name, field in _PHASES.items()}
        self._print_times({**parts, **phases})
        return {**{_PARTS[part]: ms for part, ms in parts.items()}, **phases}

    def step_ended(self, step: int, skipped: int, lr: Sequence[Any], mom: Sequence[Any]) -> None:
        """Prints a line where the number of rounds is a multiple of steps_per_print."""
        if self._every is not None and step % self._every == 0:
            self._print(f"step={step}, skipped={skipped}, lr={list(lr)}, mom={list(mom)}")

    def _filled(self, taken: Mapping[str, float]) -> dict[str, float]:
        return {
            "fwd": taken.get("fwd", 0.0),
            "bwd": taken.get("bwd", 0.0),
            "bwd_inner": taken.get("bwd", 0.0),
            "bwd_allreduce": 0.0,
            "step": taken.get("step", 0.0),
        }

    def _print_times(self, milliseconds: Mapping[str, float]) -> None:
        parts = [f"{name}: {ms:.2f}" for name, ms in milliseconds.items()]
        self._print(" | ".join(["time (ms)", *parts]))

    def _print(self, text: str) -> None:
        if self._rank == 0:
            print(f"[Rank 0] {text}", flush=True)
