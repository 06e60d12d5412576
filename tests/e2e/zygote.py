"""A process with torch imported, which forks trainers: storm_trainer.py, from the test's side.

Comes from: tests that start many trainers. Goes to: storm_trainer.py. Thread safety: used by one
thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from e2e.cluster import HANG_S

SCRIPT = Path(__file__).with_name("storm_trainer.py")


class Zygote:
    """Starts trainers that need not import torch, and says how they have ended."""

    def __init__(self, fake: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={
                **os.environ, "OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": str(fake),
                "FAKE_NCCL": "notice", "BALLAST_NCCL_ON_HOST": "1",
                "BALLAST_COLLECTIVE_TIMEOUT": "15",
            },
        )  # fmt: skip
        self._changed = threading.Condition()
        self._new: list[int] = []
        self._started: set[int] = set()
        self._codes: dict[int, int] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            said = json.loads(line)
            with self._changed:
                if "code" in said:
                    self._codes[said["pid"]] = said["code"]
                else:
                    self._new.append(said["pid"])
                    self._started.add(said["pid"])
                self._changed.notify_all()

    def start(self, given: dict[str, Any]) -> int:
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        with self._changed:
            assert self._changed.wait_for(lambda: self._new, HANG_S), "no trainer was started"
            return self._new.pop()

    def kill(self, pid: int) -> None:
        """Nothing where it has ended: the number may be another process's."""
        self._process.stdin.write(json.dumps({"kill": pid}) + "\n")
        self._process.stdin.flush()

    def code(self, pid: int) -> int | None:
        with self._changed:
            return self._codes.get(pid)

    def wait(self, seconds: float) -> None:
        """Waits until a child has ended, for `seconds` at most."""
        with self._changed:
            self._changed.wait(seconds)

    def stop(self) -> None:
        for pid in self._started - set(self._codes):
            self.kill(pid)
        self._process.stdin.close()
        self._process.wait(HANG_S)
        self._reader.join()
