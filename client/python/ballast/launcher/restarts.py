"""Starts state servers again that have ended, so that a job with durability can go on.

Comes from: ballast.run. Goes to: launcher.servers. A job with durability "none" is lost with its
server all the same: its trainers fail, and the run with them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from ballast.launcher.servers import LaunchError, Servers

# ballastd's exit code for wrong usage: it would end the same way again.
USAGE_CODE = 2
# One that ends sooner than this after its start waits before the next one, ever longer.
STEADY_S = 3.0
FIRST_DELAY_S = 0.25
DELAY_MAX_S = 5.0
# Ended on purpose, by somebody: its log would say nothing of interest.
_ORDERED = {0: "in order", **{128 + s: f"by {s.name}" for s in (signal.SIGKILL, signal.SIGTERM)}}


class Restarts:
    """Watches the servers of one run; poll() from the main thread."""

    def __init__(self, servers: Servers, limit: int, say: Callable[[str], None]) -> None:
        """limit: restarts in all; 0: none. say: prints a line for the user."""
        self._servers = servers
        self._limit = limit
        self._say = say
        self._used = 0
        self._started: dict[int, float] = {}  # by server that was started again: when last
        self._due: dict[int, float] = {}  # by server that is down: when to start it
        self._quick: dict[int, int] = {}  # by server: how often in a row it ended soon
        self._awaited: set[int] = set()  # started again, do not listen yet

    def poll(self) -> int | None:
        """Starts what is due. Returns the number of a server that stays down, or None."""
        for i, child in enumerate(self._servers.children):
            if not child.ended():
                self._note_ready(i)
            elif i in self._due:
                if time.monotonic() >= self._due[i] and not self._start(i):
                    return i
            elif self._used >= self._limit or child.code() == USAGE_CODE:
                return i
            else:
                self._plan(i)
        return None

    def _note_ready(self, i: int) -> None:
        if i in self._awaited and self._servers.ready(i):
            self._awaited.discard(i)
            took = time.monotonic() - self._started[i]
            self._say(f"server {i} is there again, {took:.1f} s after its start")

    def _plan(self, i: int) -> None:
        now = time.monotonic()
        soon = i in self._started and now - self._started[i] < STEADY_S
        self._quick[i] = self._quick.get(i, 0) + 1 if soon else 0
        delay = FIRST_DELAY_S * 2 ** (self._quick[i] - 1) if soon else 0.0
        self._due[i] = now + min(delay, DELAY_MAX_S)
        self._used += 1
        code = self._servers.children[i].code()
        how = f"server {i} ended {_ORDERED[code]}" if code in _ORDERED else self._servers.report(i)
        joint = "; " if code in _ORDERED else "\n"
        self._say(
            f"{how}{joint}starting it again on its data and port (restart {self._used} of "
            f"{self._limit})"
        )

    def _start(self, i: int) -> bool:
        del self._due[i]
        try:
            self._servers.restart(i)
        except LaunchError as error:
            self._say(str(error))
            return False
        self._started[i] = time.monotonic()
        self._awaited.add(i)
        return True
