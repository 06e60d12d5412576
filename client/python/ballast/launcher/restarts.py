"""Restarts ended processes, so that a job with durability can continue.

Comes from: ballast.run. Goes to: launcher.servers, launcher.trainers. A job with durability "none"
is lost with any of its processes all the same: its trainers fail, and the run with them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from ballast.launcher import process
from ballast.launcher.process import Child
from ballast.launcher.servers import LaunchError, Servers
from ballast.launcher.trainers import Trainers

# ballastd's exit code for wrong usage: it would end the same way again.
USAGE_CODE = 2
# One that lacks state, or finds it damaged.
STATE_LOST_CODE = 4
# One that ends sooner than this after its start waits before the next one, ever longer.
STEADY_S = 3.0
FIRST_DELAY_S = 0.25
DELAY_MAX_S = 5.0
# Ended on purpose: a server's log would say nothing of interest.
_ORDERED = {0: "in order", **{128 + s: f"by {s.name}" for s in (signal.SIGKILL, signal.SIGTERM)}}


class _Restarts:
    """Watches the processes of one kind of a run; poll() from the main thread."""

    def __init__(self, limit: int, say: Callable[[str], None]) -> None:
        """limit: restarts in all; 0: none. say: prints a line for the user."""
        self._limit = limit
        self._say = say
        self._used = 0
        self._started: dict[int, float] = {}  # when each restarted process was started last
        self._due: dict[int, float] = {}  # when to start each process now down
        self._quick: dict[int, int] = {}  # by process: how often in a row it ended soon

    def poll(self) -> int | None:
        """Starts the processes now due. Returns the number of a process that stays down, or None;
        of several, the first to end, because it may have caused the others' end."""
        children = self._children()
        for i in process.by_end(children):
            child = children[i]
            if not child.ended():
                self._note_running(i)
            elif not self._missed(child):
                continue
            elif i in self._due:
                if time.monotonic() >= self._due[i] and not self._start(i):
                    return i
            elif self._used >= self._limit:
                return i
            elif (why := self._hopeless(i)) is not None:
                if why:
                    self._say(why)
                return i
            else:
                self._plan(i)
        return None

    def pending(self) -> bool:
        """Whether a process now down will be restarted."""
        return bool(self._due)

    def _plan(self, i: int) -> None:
        now = time.monotonic()
        soon = i in self._started and now - self._started[i] < STEADY_S
        self._quick[i] = self._quick.get(i, 0) + 1 if soon else 0
        delay = FIRST_DELAY_S * 2 ** (self._quick[i] - 1) if soon else 0.0
        self._due[i] = now + min(delay, DELAY_MAX_S)
        self._used += 1
        self._say(f"{self._story(i)} (restart {self._used} of {self._limit})")

    def _start(self, i: int) -> bool:
        del self._due[i]
        try:
            self._again(i)
        except (LaunchError, OSError) as error:
            self._say(f"cannot start it again: {error}")
            return False
        self._started[i] = time.monotonic()
        return True

    # The differences between the kinds.
    def _children(self) -> Sequence[Child]:
        raise NotImplementedError

    def _missed(self, child: Child) -> bool:
        return True

    def _hopeless(self, i: int) -> str | None:
        # What to say of a process that would end the same way again; None: it may not.
        raise NotImplementedError

    def _story(self, i: int) -> str:
        raise NotImplementedError

    def _again(self, i: int) -> None:
        raise NotImplementedError

    def _note_running(self, i: int) -> None:
        pass


class ServerRestarts(_Restarts):
    """State servers come back on their data and port."""

    def __init__(self, servers: Servers, limit: int, say: Callable[[str], None]) -> None:
        super().__init__(limit, say)
        self._servers = servers
        self._awaited: set[int] = set()  # started again, do not listen yet

    def _children(self) -> Sequence[Child]:
        return self._servers.children

    def _hopeless(self, i: int) -> str | None:
        code = self._servers.children[i].code()
        if code == STATE_LOST_CODE:
            return f"server {i} is not started again: its state is lost or damaged (STATE_LOST)"
        return "" if code == USAGE_CODE else None

    def _story(self, i: int) -> str:
        code = self._servers.children[i].code()
        how = f"server {i} ended {_ORDERED[code]}; " if code in _ORDERED else None
        return (how or f"{self._servers.report(i)}\n") + "starting it again on its data and port"

    def _again(self, i: int) -> None:
        self._servers.restart(i)
        self._awaited.add(i)

    def _note_running(self, i: int) -> None:
        if i in self._awaited and self._servers.ready(i):
            self._awaited.discard(i)
            took = time.monotonic() - self._started[i]
            self._say(f"server {i} is there again, {took:.1f} s after its start")


class TrainerRestarts(_Restarts):
    """Trainers that fail come back in their seats, where resume="auto" lets them continue."""

    def __init__(self, trainers: Trainers, limit: int, say: Callable[[str], None]) -> None:
        super().__init__(limit, say)
        self._trainers = trainers

    def _children(self) -> Sequence[Child]:
        return self._trainers.children

    def _missed(self, child: Child) -> bool:
        return child.code() != 0

    def _hopeless(self, i: int) -> str | None:
        why = self._trainers.why_hopeless(i)
        return None if why is None else f"{self._trainers.name(i)} is not started again: {why}"

    def _story(self, i: int) -> str:
        code = self._trainers.children[i].code()
        how = "ended " + _ORDERED[code] if code in _ORDERED else self._trainers.how_ended(i)
        return f"{self._trainers.name(i)} {how}; starting it again in its seat"

    def _again(self, i: int) -> None:
        self._trainers.restart(i)
