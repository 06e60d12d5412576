"""Finds a job's lost ranks from the home's record of their calls, and words the message.

Comes from: ballast.torch.collective, .nccl, when a call among the ranks has failed. Goes to:
ballast.rendezvous. Needs no torch. Thread safety: as Session.
"""

from __future__ import annotations

import dataclasses
import math
import time

from ballast.errors import BallastError
from ballast.rendezvous import Phase, RankNews, Rendezvous, RollCall
from ballast.session import SLICE_S, Session

# A trainer's client sends a sign of life every 0.5 s. A trainer that sent none for
# this time is not there.
SILENT_S = 1.5
# For how long the home is asked until a rank is silent, or another process has its seat.
WAIT_S = 3.0
_WITH_BUCKETS = (Phase.REDUCE_SCATTER, Phase.ALL_GATHER)


@dataclasses.dataclass(frozen=True)
class Findings:
    """ranks: lost, ascending. notes: the text about them, or why none is named."""

    ranks: list[int]
    notes: list[str]


def look(session: Session, epoch: int, known: list[int] | None = None) -> Findings:
    """The ranks other than this one lost in `epoch` of the session's job.

    A rank is lost when its seat has another process in a later epoch, when the home has not heard
    of it for SILENT_S, and when the home, since it began to listen, has not heard of it for a
    lease. Asks until a rank is lost, for at most WAIT_S; an absent home is asked once. known: ranks
    already known to be lost. Asks once, for the notes.
    """
    deadline = time.monotonic() + WAIT_S * session.config.time_scale
    while True:
        present = session.epoch
        try:
            call = Rendezvous(session).roll_call()
        except BallastError as error:
            if error.reason != "STALE_EPOCH":
                return Findings(known or [], [error.message[:200]] if is_away(error) else [])
            call = None  # The home is on its way to the next epoch.
        if call is not None and session.epoch == present:
            found = _silent(session, call, known) if present == epoch else _replaced(call, epoch)
            if found.ranks or present != epoch:
                return found if known is None else Findings(known, found.notes)
        else:
            found = Findings([], [])
        if known is not None or time.monotonic() >= deadline:
            return Findings(known or [], found.notes)
        time.sleep(SLICE_S)


def last_heard(news: RankNews) -> str:
    """For example: rank 3 was last heard 58 s ago, in reduce-scatter of bucket 7 of round 812."""
    if not news.heard:
        since = "it took its seat" if news.since_epoch else "the home began to listen"
        return f"rank {news.rank} was not heard since {since}, {news.ago_s:.1f} s ago"
    text = f"rank {news.rank} was last heard {news.ago_s:.0f} s ago"
    if news.phase in (Phase.NONE, Phase.INIT):
        return text + (", making its communicator" if news.phase else "")
    bucket = f" of bucket {news.bucket}" if news.phase in _WITH_BUCKETS else ""
    phase = news.phase.name.lower().replace("_", "-")
    return f"{text}, in {phase}{bucket} of round {news.round}"


def is_away(error: BallastError) -> bool:
    """Whether the home is away, and the session is not at its end."""
    return error.code == "UNAVAILABLE" and error.reason in ("UNSPECIFIED", "UNREACHABLE")


def _silent(session: Session, call: RollCall, known: list[int] | None) -> Findings:
    others = [news for news in call.ranks if news.rank != session.config.rank]
    lost = [
        news.rank
        for news in others
        if news.ago_s
        >= (SILENT_S * session.config.time_scale if news.heard else call.lease_s or math.inf)
    ]
    named = lost if known is None else known
    # Without a lost rank, a text says of which ranks the home knows nothing.
    of = [news for news in others if news.rank in named or (not named and not news.heard)]
    return Findings(lost, [last_heard(news) for news in of])


def _replaced(call: RollCall, epoch: int) -> Findings:
    new = [news for news in call.ranks if news.since_epoch > epoch]
    return Findings(
        [news.rank for news in new],
        [f"rank {of.rank} has a new process since epoch {of.since_epoch}" for of in new],
    )
