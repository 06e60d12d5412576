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
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Kill:
    """kind: of process, a key of VICTIMS; number: which one of them; step: in whose round."""

    kind: str
    number: int
    step: int


def server_pid(data_dir: pathlib.Path, number: int) -> int | None:
    """The process of a state server, or None while it is being started."""
    try:
        return json.loads((data_dir / "run" / f"ready-{number}.json").read_text())["pid"]
    except (FileNotFoundError, json.JSONDecodeError):
        return None


# How to find the process to kill, by its kind.
VICTIMS: dict[str, Callable[[pathlib.Path, int], int | None]] = {"server": server_pid}


def plan(steps: int, servers: int) -> list[Kill]:
    """The last server after a third of the steps; the first one, the job's home, after two."""
    third = max(1, steps // 3)
    return [Kill("server", servers - 1, third), Kill("server", 0, 2 * third)]


class Chaos:
    """Carries a plan out; `done` has the kills so far, with the process that each one hit."""

    def __init__(
        self, kills: list[Kill], data_dir: pathlib.Path, say: Callable[[str], None]
    ) -> None:
        self._todo = sorted(kills, key=lambda kill: kill.step)
        self._data_dir = data_dir
        self._say = say
        self.done: list[Kill] = []

    def during(self, step: int) -> None:
        """Kills what is due in the round of `step`. One that is not up yet is due next time."""
        while self._todo and self._todo[0].step <= step:
            kill = self._todo[0]
            pid = VICTIMS[kill.kind](self._data_dir, kill.number)
            if pid is None:
                return
            os.kill(pid, signal.SIGKILL)
            self._todo.pop(0)
            self.done.append(dataclasses.replace(kill, step=step))
            self._say(
                f"quickstart: kill -9 of {kill.kind} {kill.number} (process {pid}) in step {step}"
            )
