"""How much time the machine takes away from whoever should run: the control of a promised bound.

Comes from: tests of bounds. A thread sleeps for a moment, again and again, and adds up by how much
it overslept. What is measured beside it suffers from the same load, so the sum is subtracted from
it: on a quiet machine that changes nothing, and on an overloaded one the test says nothing.
"""

from __future__ import annotations

import threading
import time

TICK_S = 0.01
# Timers are this exact on an idle machine.
GRACE_S = 0.002


class Lateness:
    """Measures as long as it is open as a context."""

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
