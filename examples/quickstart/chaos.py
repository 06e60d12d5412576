"""What `--chaos` does to a run: kill -9 of processes in the middle of given steps.

Comes from: quickstart.py. Goes to: processes that ballast-run has started, whose numbers it takes
from the files below the run's data directory. Starting them again is ballast-run's work.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import time
from collections.abc import Callable

# How to find the process to kill: which file of the run tells it, by its kind.
VICTIMS = {"server": "ready-{}.json", "trainer": "trainer-{}.json"}


# Fewer steps are over before the third kill: each waits until the run has continued after the last.
STEPS_MIN = 6


@dataclasses.dataclass
class Kill:
    """kind: of process, a key of VICTIMS; number: which one of them; step: in whose round.

    pause_ms: the longest time without a finished step, from the kill to the end of that step, or of
    the one after when nothing stood in the victim's place by then: its contribution to the step had
    already arrived. restarted: whether another process stood in its place at the end.
    """

    kind: str
    number: int
    step: int
    pause_ms: float = 0.0
    restarted: bool = False


def plan(steps: int, servers: int, trainers: int) -> list[Kill]:
    """The last server after a quarter of the steps, the last trainer after two, and server 0, which
    is the job's home, after three."""
    victims = [("server", servers - 1), ("trainer", trainers - 1), ("server", 0)]
    return [
        Kill(kind, number, max(1, steps * quarter // 4))
        for quarter, (kind, number) in enumerate(victims, 1)
    ]


class Chaos:
    """Carries a plan out, one kill after the other; `done` has those so far."""

    def __init__(
        self, kills: list[Kill], data_dir: pathlib.Path, say: Callable[[str], None]
    ) -> None:
        self._todo = sorted(kills, key=lambda kill: kill.step)
        self._data_dir = data_dir
        self._say = say
        self.done: list[Kill] = []
        # Of the newest kill, while its pause is not known.
        self._victim: int | None = None
        self._quiet_since = 0.0
        self._finished = 0

    def watch(self, begun: int, finished: int) -> None:
        """begun, finished: the newest started step, and the newest finished one. Makes the
        kills due in the round of step `begun`; if the victim is not up yet, its kill waits until
        the next time. On a busy machine the whole of a round may pass between two calls: a step
        later the kill comes between rounds, too."""
        if self._victim is not None:
            self._measure(finished)
        elif self._todo and self._todo[0].step <= begun:
            if begun > finished or begun > self._todo[0].step:
                self._strike(begun, finished)

    def end(self) -> None:
        """The run is over."""
        if self._victim is not None:
            self._conclude()

    def _strike(self, step: int, finished: int) -> None:
        kill = self._todo[0]
        pid = self._pid(kill)
        if pid is None:
            return
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # It has just ended, and is being started again.
        self._todo.pop(0)
        kill.step = step
        self.done.append(kill)
        self._victim, self._finished = pid, finished
        self._quiet_since = time.monotonic()
        self._say(
            f"quickstart: kill -9 of {kill.kind} {kill.number} (process {pid}) in step {step}"
        )

    def _measure(self, finished: int) -> None:
        if finished == self._finished:
            return
        kill, now = self.done[-1], time.monotonic()
        kill.pause_ms = max(kill.pause_ms, (now - self._quiet_since) * 1e3)
        self._finished, self._quiet_since = finished, now
        if finished > kill.step or self._replaced():
            self._conclude()

    def _conclude(self) -> None:
        kill = self.done[-1]
        kill.restarted = self._replaced()
        self._victim = None
        self._say(f"quickstart: training continues, after a pause of {kill.pause_ms / 1e3:.1f} s")

    def _replaced(self) -> bool:
        return self._pid(self.done[-1]) not in (None, self._victim)

    def _pid(self, kill: Kill) -> int | None:
        """The process now, or None while it is being started."""
        path = self._data_dir / "run" / VICTIMS[kill.kind].format(kill.number)
        try:
            return json.loads(path.read_text())["pid"]
        except (FileNotFoundError, json.JSONDecodeError):
            return None
