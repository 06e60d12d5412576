"""A stage's reports in the GPU kit while it runs: one line of JSON per check, at once.

Comes from: the stages. Goes to: stdout, where the runner (__main__.py) reads it. A line that does
not begin with MARK is the stage's log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = "CHECK "


class Stage:
    """One run of a stage. cpu: a rehearsal on the stand-in; seconds: the stage's time limit."""

    def __init__(self, name: str, cpu: bool, seconds: float, folder: Path) -> None:
        self.name = name
        self.cpu = cpu
        self.folder = folder
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until the runner ends the stage."""
        return self._end - time.monotonic()

    def check(self, name: str, passed: bool, said: str = "", **numbers: object) -> bool:
        """Something that holds or does not; said: the observation, in one line."""
        self._tell(name, "passed" if passed else "failed", said, numbers)
        return passed

    def measured(
        self, name: str, value: float, unit: str, least: float | None = None, said: str = "",
        **numbers: object,
    ) -> None:  # fmt: skip
        """A number. least: the bar that it must reach, if there is one."""
        state = "measured" if least is None else "passed" if value >= least else "failed"
        bar = {} if least is None else {"least": least}
        self._tell(name, state, said, {"value": value, "unit": unit, **bar, **numbers})

    def seen(self, name: str, said: str) -> None:
        """A fact of this host, which nothing judges."""
        self._tell(name, "seen", said, {})

    def not_run(self, name: str, why: str) -> None:
        """Something that this host or this run does not have; why: in one line."""
        self._tell(name, "not run", why, {})

    @contextlib.contextmanager
    def trial(self, name: str) -> Iterator[None]:
        """Any exception of the body is the failure of the check `name`; the stage continues."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.check(name, False, f"{type(error).__name__}: {str(error)[:600]}")

    def _tell(self, name: str, state: str, said: str, numbers: dict[str, object]) -> None:
        line = {"stage": self.name, "check": name, "state": state, "said": said, **numbers}
        # In one piece: other threads write, too.
        sys.stdout.write(MARK + json.dumps(line) + "\n")
        sys.stdout.flush()


def main(name: str, run: Callable[[Stage], None]) -> None:
    """What `python -m gpu_kit.<stage>` does: reads the arguments of the runner, runs the stage."""
    parser = argparse.ArgumentParser(prog=f"gpu_kit.{name}")
    parser.add_argument("--cpu", action="store_true", help="rehearse on the stand-in for CUDA")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    stage = Stage(name, given.cpu, given.seconds, given.folder)
    with stage.trial(f"{name}: runs to its end"):
        run(stage)
