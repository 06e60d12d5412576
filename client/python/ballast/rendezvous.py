"""How the ranks of a job agree on communicators among them, over the job's home.

Comes from: the collectives of ballast.torch. Goes to: ballast.session, the extension module. Knows
neither torch nor NCCL: an id is opaque bytes. client/cpp/ballast/rendezvous.h has the rules.
Thread safety: as Session; doing() may be called by any thread.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from ballast.session import Session

ID_BYTES_MAX = 1024
TIMEOUT_S = 60.0


class Phase(enum.IntEnum):
    """A rank's activity with its communicator. Numbers: ballast.v1.CollectivePhase."""

    NONE = 0
    INIT = 1
    AGREEMENT = 2
    REDUCE_SCATTER = 3
    PUSH = 4
    PULL = 5
    ALL_GATHER = 6


@dataclasses.dataclass(frozen=True)
class RankNews:
    """A rank, as the home has heard of it last.

    heard: whether it was, since it took its seat or the home began to listen. ago_s: when it was
    heard; else for how long the home has listened. since_epoch: the process's first epoch; 0 where
    it is older than the home's records.
    """

    rank: int
    heard: bool
    ago_s: float
    since_epoch: int
    phase: Phase
    bucket: int
    round: int


@dataclasses.dataclass(frozen=True)
class RollCall:
    """ranks: ascending. generation: the newest, 0 for none. ended: the reason of its end, or "".

    lease_s: a process silent for longer may lose its seat; 0 where the home does not say.
    """

    ranks: list[RankNews]
    generation: int
    ended: str
    lease_s: float


class Rendezvous:
    """The meetings of one epoch and generation: exchange() an id, make the communicator, ready().

    Every call raises a session's errors, and BallastError with reason STALE_EPOCH (abort all
    communicators of the epoch, begin again in the next), RendezvousEnded (abort them, begin with
    the next generation), TrainerLost with the ranks that did not come and their last activity, and
    BadArgument, which changes nothing.

    session: attached. generation: from 1 in each epoch, and one more after each failure. timeout_s:
    how long the ranks wait for each other; the first call of a meeting sets it for all.
    """

    def __init__(self, session: Session, generation: int = 1, timeout_s: float = TIMEOUT_S) -> None:
        self.epoch = session.epoch
        self.generation = generation
        self.timeout_s = timeout_s
        self._session = session

    def exchange(self, tag: str, id: bytes = b"") -> bytes:
        """The id of the communicator `tag`. The lowest rank gives it, the others give none.

        RendezvousEnded when every rank uses it already.
        """
        return self._act("exchange", tag, id)

    def ready(self, tag: str, id: bytes) -> None:
        """This rank has made its communicator of `id`; returns when every rank has."""
        self._act("ready", tag, id)

    def give_up(self, tag: str, why: str) -> None:
        """Ends the generation for all ranks, which read `why` (256 bytes of it).

        As roll_call(), it asks an absent home for one second, then code is "UNAVAILABLE".
        """
        self._act("give_up", tag, why=why)

    def roll_call(self) -> RollCall:
        """The state of the session's present epoch, at once."""
        found = self._act("roll_call", "")
        ranks = [RankNews(*news, Phase(p), b, r) for *news, p, b, r in found["ranks"]]
        return RollCall(ranks, found["generation"], found["ended"], found["lease_s"])

    def doing(self, phase: Phase, bucket: int = 0, round: int = 0) -> None:
        """Sets this rank's activity; the home hears it with the next call."""
        self._session.set_doing(int(phase), bucket, round)

    def _act(self, act: str, tag: str, id: bytes = b"", why: str = "") -> Any:
        meeting = (self.epoch, self.generation, tag, self.timeout_s)
        return self._session.call(
            lambda client: client.start_rendezvous(act=act, meeting=meeting, id=id, why=why)
        )
