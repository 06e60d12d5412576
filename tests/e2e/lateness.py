"""How much time the machine takes away from whoever should run: the control of a promised bound.

Comes from: tests of bounds. A thread sleeps for a moment, again and again, and adds up by how much
it overslept. The measured work suffers from the same load, so the sum is subtracted from
it: on a quiet machine that changes nothing, and on an overloaded one the test says nothing.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TICK_S = 0.01
LOOK_S = 0.25
# Timers are this exact on an idle machine.
GRACE_S = 0.002


class Lateness:
    """Measures while it is open as a context."""

    def __init__(self) -> None:
        self._overslept: list[tuple[float, float]] = []  # when it woke up, by how much too late
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Lateness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def since(self, moment: float) -> float:
        """Seconds lost after this moment of time.monotonic()."""
        return sum(late for when, late in list(self._overslept) if when > moment)

    def _measure(self) -> None:
        before = time.monotonic()
        while not self._over.is_set():
            time.sleep(TICK_S)
            now = time.monotonic()
            late = now - before - TICK_S - GRACE_S
            if late > 0.0:
                self._overslept.append((now, late))
            before = now


class Ending:
    """Waits for the end of a process, which somebody else reaps, from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._starved = _starved_s(pid)
        self._pool = ThreadPoolExecutor(1)
        self._ended = self._pool.submit(self._wait)
        self._pool.shutdown(wait=False)

    def late(self, lateness: Lateness, timeout_s: float) -> float:
        """Seconds lost until the end by the process, and after it by this one.

        An interpreter's work at its end is its main thread's alone, so only the time counts in
        which that thread could run and did not.
        """
        ended, starved = self._ended.result(timeout_s)
        return starved - self._starved + lateness.since(ended)

    def _wait(self) -> tuple[float, float]:
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        return time.monotonic(), _starved_s(self._pid)


class Starvation:
    """How long threads of some processes could run and did not, since begin()."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._known: dict[tuple[int, int], float] = {}  # per thread, of its whole life
        self._next_look = 0.0

    def begin(self) -> None:
        self.seconds = 0.0

    def look(self, pids: list[int]) -> None:
        """Adds the time since the last look; at most one look in LOOK_S does anything. A process
        ended since then brings nothing."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        for pid in pids:
            for thread in _threads(pid):
                starved = _starved_s(pid, thread)
                self.seconds += max(0.0, starved - self._known.get((pid, thread), 0.0))
                self._known[pid, thread] = starved


def _threads(pid: int) -> list[int]:
    try:
        return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


def _starved_s(pid: int, thread: int | None = None) -> float:
    """Of one thread, else the main one, see proc(5); 0 where the kernel keeps no such account."""
    task = "" if thread is None else f"/task/{thread}"
    try:
        return int(Path(f"/proc/{pid}{task}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
