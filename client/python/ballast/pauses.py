"""Reports on stderr an absent server or a trainer being replaced, and the end of the pause.

Comes from: the C++ client, through the extension's PauseQueue. Goes to: sys.stderr. Used by
ballast.session between the slices of its waits, so that the client itself never waits for Python.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

# Rank 0 speaks for all, because an absent server is absent for all. Only after this time the
# others speak, too: then the server may be out of their reach alone.
OTHERS_AFTER_S = 10.0
OTHERS_EVERY_S = 30.0

# gRPC's texts about connections, and ours.
_TRANSPORT = (
    ("Connection reset", "connection reset"),
    ("Connection refused", "connection refused"),
    ("Socket closed", "connection closed"),
    ("keepalive watchdog timeout", "no answer"),
)

# In the reason of a planned end.
_AGE = "listen.max_connection_age"


class Pause(NamedTuple):
    """ballast::client::Pause (client/cpp/ballast/client.h).

    kind: "lost", "waiting" (every 5 s) and "back" of a server, which is -1 while only its address
    is known; round is 0 while attaching; "trainer_lost" and "trainer_back" of
    the trainer in `slots`; "replacing" and "replaced" of the trainers in `slots` by processes that
    `epoch` begins with. Those in `joined` have no predecessor, those in `left` no successor. None
    is known while the job's home, which is `server`, has not named them.
    """

    kind: str
    server: int
    address: str
    round: int
    away_s: float
    error: str
    slots: Sequence[int] = ()
    epoch: int = 0
    left: Sequence[int] = ()  # seats now empty
    world: int = 0  # trainers from now on
    joined: Sequence[int] = ()

    @property
    def of_server(self) -> bool:
        return self.kind in ("lost", "waiting", "back")

    @property
    def over(self) -> bool:
        return self.kind in ("back", "replaced", "trainer_back")


def say(rank: int, text: str) -> None:
    """A line on stderr, marked with the rank unless it is 0. What cannot be written is lost."""
    mark = "" if rank == 0 else f"rank {rank}: "
    with contextlib.suppress(OSError, ValueError):
        # One write, so that lines of several threads stay whole.
        print(f"ballast: {mark}{text}\n", end="", file=sys.stderr, flush=True)


class PauseReporter:
    """Prints the news of one trainer. Used by one thread at a time."""

    def __init__(
        self, queue: Any, rank: int, timeout_s: float, attach_timeout_s: float
    ) -> None:
        """queue: has take() -> list of Pause tuples. timeout_s, attach_timeout_s: after which the
        client gives up waiting for a server in a running job, and in an attach."""
        self._queue = queue
        self._rank = rank
        self._timeout_s = timeout_s
        self._attach_timeout_s = attach_timeout_s
        # The time.monotonic() since which each absent trainer is away.
        self._away: dict[int, float] = {}
        self._servers_away: set[int] = set()
        # For each absent server, and None for trainers: the length of the absence reported so far.
        self._told: dict[int | None, float] = {}
        # Servers and trainers whose connection has ended at its age, and is made again.
        self._renewed: set[tuple[int, ...]] = set()

    def tell(self) -> None:
        """Prints news."""
        for entry in self._queue.take():
            pause = Pause(*entry)
            self._note(pause)
            text = self._text(pause)
            if text:
                say(self._rank, text)

    def lost_for(self, at_least_s: float) -> tuple[int, float] | None:
        """A trainer absent for at least that time, and its time; None: there is none."""
        now = time.monotonic()
        for slot, since in sorted(self._away.items()):
            if now - since >= at_least_s:
                return slot, now - since
        return None

    @property
    def someone_is_away(self) -> bool:
        """Whether a server or a trainer is known to be away."""
        return bool(self._away or self._servers_away)

    def say(self, text: str) -> None:
        """A line of this trainer on stderr."""
        say(self._rank, text)

    def _note(self, pause: Pause) -> None:
        if pause.of_server and pause.server >= 0:
            change = self._servers_away.discard if pause.over else self._servers_away.add
            change(pause.server)
        if pause.kind == "trainer_lost":
            since = time.monotonic() - pause.away_s
            self._away.update((slot, since) for slot in pause.slots)
        elif pause.over and not pause.of_server:
            for slot in (*pause.slots, *pause.left):
                self._away.pop(slot, None)

    def _text(self, pause: Pause) -> str:
        if self._is_renewal(pause) or not self._due(pause):
            return ""
        return self._of_server(pause) if pause.of_server else _of_trainers(pause)

    def _is_renewal(self, pause: Pause) -> bool:
        """Whether a connection has only ended at its age and is made again, as planned."""
        begins = pause.kind in ("lost", "trainer_lost")
        if not begins and pause.kind not in ("back", "trainer_back"):
            return False
        about = (pause.of_server, pause.server, *pause.slots)
        if begins and _AGE in pause.error:
            self._renewed.add(about)
            return True
        was_renewed = about in self._renewed
        self._renewed.discard(about)
        # A longer absence of a server was reported.
        return was_renewed and not begins and not (pause.of_server and pause.server in self._told)

    def _due(self, pause: Pause) -> bool:
        about = pause.server if pause.of_server else None
        last = self._told.get(about)
        if pause.kind == "lost" and _silence_in(pause.error):
            # Only this trainer can report its own silence.
            self._told[about] = pause.away_s
            return True
        if pause.over:
            self._told.pop(about, None)
            return self._rank == 0 or last is not None
        after = OTHERS_AFTER_S if last is None else last + OTHERS_EVERY_S
        if self._rank != _speaker(pause) and pause.away_s < after:
            return False
        self._told[about] = pause.away_s
        return True

    def _of_server(self, pause: Pause) -> str:
        if pause.over:
            return f"{_name_of(pause)} is back {_end_of(pause)}"
        known = pause.server >= 0 and pause.address
        where = f"{_name_of(pause)} ({pause.address})" if known else _name_of(pause)
        if pause.kind == "lost" and (silence := _silence_in(pause.error)):
            return (
                f"{where} had heard nothing of this trainer for {silence} and has hung up; was "
                "this process stopped, or its machine too busy? Connecting again"
            )
        why = reason_of(pause)
        waits = "training waits" if pause.round else "attaching waits"
        if pause.kind == "lost":
            return f"{where} is away ({why}); {waits}"
        limit = self._timeout_s if pause.round else self._attach_timeout_s
        return (
            f"{where} is still away after {pause.away_s:.0f} s ({why}); {waits}, for at most "
            f"{limit:g} s"
        )


def _speaker(pause: Pause) -> int:
    # One rank reports for all: the lowest not affected by the pause.
    away = {*pause.slots, *pause.left}
    return next(rank for rank in range(len(away) + 1) if rank not in away)


def _silence_in(error: str) -> str:
    """For how long this trainer was silent, when a server has hung up because of that; else ""."""
    silent = re.match(r"slot \d+ of this job sent no heartbeat for (\S+) ", error)
    return silent[1] if silent else ""


def _of_trainers(pause: Pause) -> str:
    if pause.left:
        gone = ", ".join(map(str, pause.left))
        text = f"continuing without trainer {gone}; {pause.world} in all"
        return f"{text}, {_end_of(pause)}" if pause.over else text
    if not pause.slots:
        return f"the trainers change; who comes is not known yet ({reason_of(pause)})"
    names = ", ".join(map(str, pause.slots))
    if pause.kind == "trainer_lost":
        return f"trainer {names} is away ({reason_of(pause)}); training waits"
    if pause.kind == "trainer_back":
        return f"trainer {names} is back {_end_of(pause)}"
    several = len(pause.slots) > 1
    if pause.over:
        who = f"trainers {names} were" if several else f"trainer {names} was"
        return f"{who} let in {_end_of(pause)}"
    again = [slot for slot in pause.slots if slot not in pause.joined]
    parts = _did(again, "was", "were", "started again")
    parts += _did(pause.joined, "has", "have", "joined")
    takes = " and takes" if not several else " and take" if len(parts) == 1 else "; they take"
    return f"{' and '.join(parts)}{takes} part from epoch {pause.epoch} on; training waits"


def _did(slots: Sequence[int], one: str, many: str, what: str) -> list[str]:
    names = ", ".join(map(str, slots))
    who = f"trainers {names} {many}" if len(slots) > 1 else f"trainer {names} {one}"
    return [f"{who} {what}"] if slots else []


def _name_of(pause: Pause) -> str:
    return f"server {pause.server}" if pause.server >= 0 else f"the server at {pause.address}"


def _end_of(pause: Pause) -> str:
    what = f"round {pause.round}" if pause.round else "attaching"
    return f"after {pause.away_s:.1f} s; {what} continues"


def reason_of(pause: Pause) -> str:
    """The client's reason in a few words, without the server's name, which the line has already."""
    for theirs, ours in _TRANSPORT:
        if theirs in pause.error:
            return ours
    if silence := _silence_in(pause.error):
        return f"it had heard nothing of this trainer for {silence}"
    name = rf"state server {pause.server} at {re.escape(pause.address)} "
    text = re.sub(rf"^{name}(is gone: )?", "", pause.error)
    return text or "no reason was given"
