"""Says whom a round, or the start of a job, waits for: once per straggle.

Comes from: the servers' /statusz. Goes to: ballast.run, which prints it. An unresponsive trainer is
not reported here, because the other trainers report it themselves. A trainer that ended with exit
code 0 without leaving its job is reported: ballast-run does not restart it, so a round in a fixed
world would wait for it forever.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# A longer wait for a healthy trainer is worth a line.
TELL_AFTER_S = 3.0
# Longer than the lease after which a variable world continues without a lost trainer.
GIVE_UP_AFTER_S = 30.0
POLL_S = 1.0
# States of a present trainer that owes something (SlotStatus in ballast/v1/admin.proto).
_WAITED_FOR = ("attached", "pushing")
_OVER = "which has ended with exit code 0 and has not left the job"


class Stragglers:
    """Finds the late trainers from the servers' timed reports. Pure but for its memory."""

    def __init__(self, tell_after_s: float) -> None:
        self._tell_after_s = tell_after_s
        self._since: dict[tuple[str, int, int], float] = {}  # job, round, slot -> first seen
        self._told: dict[tuple[str, int], int] = {}  # job, slot -> newest round it was late in

    def lines(
        self,
        servers: Iterable[dict[str, Any]],
        now: float,
        over: Callable[[int], bool] = lambda slot: False,
    ) -> list[str]:
        """The lines to print. servers: of /statusz, each with its jobs; now: seconds. over: whether
        the trainer of a slot has ended with exit code 0."""
        owed = _owed(servers, over)
        self._since = {key: self._since.get(key, now) for key in owed}
        late = [key for key in sorted(owed) if now - self._since[key] >= self._tell_after_s]
        lines = []
        for job, round_, slot in late:
            last = self._told.get((job, slot))
            self._told[job, slot] = round_
            if last is None or round_ - last > 1:  # else it is as late as in the round before
                waited = now - self._since[job, round_, slot]
                what = f"round {round_}" if round_ else "the job"
                which = _OVER if over(slot) else _what(owed[job, round_, slot], round_)
                lines.append(f"{what} has waited {waited:.0f} s for trainer {slot}, {which}")
        return lines

    def waits_in_vain(self, now: float, over: Callable[[int], bool]) -> str | None:
        """The report that a round has waited long enough for an ended trainer; None: not yet."""
        for job, round_, slot in sorted(self._since):
            waited = now - self._since[job, round_, slot]
            if over(slot) and waited >= GIVE_UP_AFTER_S / TELL_AFTER_S * self._tell_after_s:
                return f"round {round_} of job {job} waits in vain for trainer {slot}, {_OVER}"
        return None


def _owed(
    servers: Iterable[dict[str, Any]], over: Callable[[int], bool]
) -> dict[tuple[str, int, int], int]:
    # Extents that a slot owes in all, by job, round and slot; 0: it has not begun the round, or, in
    # round 0, the attach, has not come.
    owed: dict[tuple[str, int, int], int] = {}
    for server in servers:
        for job in server["jobs"]:
            if job["state"] == "attaching":
                for slot in job["slots"]:
                    if slot["state"] == "absent":
                        owed[job["name"], 0, slot["slot"]] = 0
            if job["state"] != "running" or job["phase"] != "collect":
                continue
            for slot in job["slots"]:
                lost = slot["state"] == "lost" and slot["owed_extents"] > 0 and over(slot["slot"])
                if slot["state"] in _WAITED_FOR or lost:
                    key = (job["name"], job["round"], slot["slot"])
                    begun = slot["state"] == "pushing"
                    owed[key] = owed.get(key, 0) + (slot["owed_extents"] if begun else 0)
    return owed


def _what(extents: int, round_: int) -> str:
    if round_ == 0:
        return "which has not attached"
    if extents == 0:
        return "which has not begun it"
    return f"which owes the gradients of {extents} extent{'s' if extents > 1 else ''}"


class StragglerWatch:
    """Asks the servers on a thread of its own, as long as start() to stop()."""

    def __init__(
        self,
        addresses: Callable[[], Sequence[str]],
        say: Callable[[str], None],
        over: Callable[[int], bool] = lambda slot: False,
    ) -> None:
        """addresses: the servers' admin ports now. say: prints a line; on the thread, as over: see
        Stragglers."""
        self._addresses = addresses
        self._say = say
        self._over = over
        self.in_vain: str | None = None  # why no round will end any more
        self._stopped = threading.Event()

    def start(self, time_scale: float) -> None:
        """time_scale: stretches the time after which a trainer is late."""
        watch = Stragglers(TELL_AFTER_S * time_scale)
        threading.Thread(target=self._run, args=(watch,), daemon=True).start()

    def stop(self) -> None:
        """No line is said after this, but for one under way. Idempotent."""
        self._stopped.set()

    def _run(self, watch: Stragglers) -> None:
        while not self._stopped.wait(POLL_S):
            servers = [server for a in list(self._addresses()) for server in _status(a)]
            now = time.monotonic()
            for line in watch.lines(servers, now, self._over):
                if not self._stopped.is_set():
                    self._say(line)
            self.in_vain = watch.waits_in_vain(now, self._over)


def _status(address: str) -> list[dict[str, Any]]:
    """What /statusz says there; nothing where there is no answer."""
    connection = http.client.HTTPConnection(address, timeout=POLL_S)
    try:
        connection.request("GET", "/statusz?format=json")
        return json.loads(connection.getresponse().read()).get("servers", [])
    except (OSError, http.client.HTTPException, ValueError):
        return []
    finally:
        connection.close()
