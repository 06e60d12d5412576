"""Control.Rendezvous over real servers: ranks agree on an id, and hear why they never will."""

from __future__ import annotations

import ctypes
import re
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import ballast
from ballast import _rank_liveness, config
from ballast.rendezvous import Phase, Rendezvous
from ballast.session import Session, TensorSpec
from e2e.cluster import HANG_S, Cluster, fresh_job, wait_for

SPEC = TensorSpec("w", (4,), "float32", 0, ())


class Ranks:
    """`world` sessions of one job, a thread each."""

    def __init__(self, cluster: Cluster, world: int, job: str, durability: str = "none") -> None:
        self._cluster, self._job, self._durability = cluster, job, durability
        self.world = world
        self._pool = ThreadPoolExecutor(world + 1)
        self.sessions: list[Session] = self.each(self.attach)

    def attach(self, rank: int) -> Session:
        weight = (ctypes.c_float * 4)()
        settings = config.resolve(
            job=self._job, endpoints=self._cluster.endpoints, rank=rank, world_size=self.world,
            durability=self._durability, resume="auto" if self._durability != "none" else "never",
        )  # fmt: skip
        address = ctypes.addressof(weight)
        return Session.attach(settings, ("AdamW", {}), [SPEC], [address], weight)

    def start(self, call: Callable[[int], Any], ranks: list[int]) -> list[Future]:
        return [self._pool.submit(call, rank) for rank in ranks]

    def each(self, call: Callable[[int], Any]) -> list[Any]:
        return [f.result(HANG_S) for f in self.start(call, list(range(self.world)))]

    def close(self) -> None:
        for session in self.sessions:
            session.abandon("the test is over")
        self._pool.shutdown()


@pytest.fixture
def ranks(clusters):
    made: list[Ranks] = []

    def make(world: int, **named: Any) -> Ranks:
        made.append(Ranks(clusters(1), world, fresh_job("meet"), **named))
        return made[-1]

    yield make
    for one in made:
        one.close()


def met(ranks: Ranks, generation: int = 1, id: bytes = b"i\0d") -> list[bytes]:
    def meet(rank: int) -> bytes:
        meeting = Rendezvous(ranks.sessions[rank], generation)
        agreed = meeting.exchange("main", id if rank == 0 else b"")
        meeting.ready("main", agreed)
        return agreed

    return ranks.each(meet)


def error_of(future: Future) -> Exception:
    error = future.exception(HANG_S)
    assert isinstance(error, Exception)
    return error


def test_every_rank_gets_the_id_of_the_lowest(ranks):
    three = ranks(3)
    assert met(three) == [b"i\0d"] * 3
    assert met(three, generation=2, id=b"next") == [b"next"] * 3


def test_a_rank_that_does_not_come_is_named_with_what_it_did_last(ranks):
    three = ranks(3)
    absent = Rendezvous(three.sessions[2])
    absent.doing(Phase.REDUCE_SCATTER, bucket=7, round=812)
    absent.roll_call()

    def meet(rank: int) -> None:
        meeting = Rendezvous(three.sessions[rank], timeout_s=0.2)
        meeting.ready("main", meeting.exchange("main", b"id" if rank == 0 else b""))

    for error in map(error_of, three.start(meet, [0, 1])):
        assert isinstance(error, ballast.TrainerLost)
        # BALLAST_TIME_SCALE stretches the time limit.
        named = r"rank 2 of epoch 1 did not arrive within [\d.]+ s \(last heard "
        assert re.search(named, str(error))
        assert "in reduce-scatter of bucket 7 of round 812" in str(error)
        assert error.slot == 2
    ended = Rendezvous(three.sessions[1]).roll_call()
    assert ended.generation == 1
    assert "rank 2 of epoch 1 did not arrive" in ended.ended
    assert [news.rank for news in ended.ranks] == [0, 1, 2]
    assert ended.ranks[2].phase is Phase.REDUCE_SCATTER


def test_what_a_rank_does_travels_with_its_heartbeats(ranks):
    two = ranks(2)
    assert not Rendezvous(two.sessions[0]).roll_call().ranks[1].heard
    Rendezvous(two.sessions[1]).doing(Phase.AGREEMENT, round=5)

    def heard() -> bool:
        news = Rendezvous(two.sessions[0]).roll_call().ranks[1]
        return (news.phase, news.round) == (Phase.AGREEMENT, 5) and news.heard

    wait_for(heard, "a heartbeat")


def test_a_rank_that_gives_up_ends_the_wait_of_the_others(ranks):
    two = ranks(2)
    waits = two.start(lambda rank: Rendezvous(two.sessions[rank]).exchange("main"), [1])[0]
    Rendezvous(two.sessions[0]).give_up("main", "no memory for the communicator")
    error = error_of(waits)
    assert isinstance(error, ballast.RendezvousEnded)
    assert "rank 0 gave up generation 1" in str(error)
    assert "no memory for the communicator" in str(error)


def test_another_id_is_refused_and_changes_nothing(ranks):
    two = ranks(2)
    first, second = (Rendezvous(session) for session in two.sessions)
    first.exchange("main", b"id")
    for call in (
        lambda: first.exchange("main", b"other"),
        lambda: second.ready("main", b"of another job"),
    ):
        with pytest.raises(ballast.BallastError) as refused:
            call()
        assert refused.value.reason == "CONFLICT"
    with pytest.raises(ballast.BadArgument, match="an id of 1025 bytes"):
        second.ready("main", b"x" * 1025)
    assert second.exchange("main") == b"id"


def test_a_new_process_in_a_seat_ends_the_meetings_of_the_old_epoch(start_cluster):
    cluster = start_cluster(1)
    ranks = Ranks(cluster, 2, fresh_job("meet"), durability="process")
    try:
        waits = ranks.start(lambda rank: Rendezvous(ranks.sessions[rank]).exchange("main"), [1])[0]
        # The home begins to listen with the first call, which may be slow to come.
        first = Rendezvous(ranks.sessions[0])
        wait_for(lambda: first.roll_call().ranks[1].heard, "the other rank to be heard")
        ranks.sessions[0].abandon("it dies")
        ranks.sessions[0] = ranks.attach(0)
        assert error_of(waits).reason == "STALE_EPOCH"
        assert ranks.sessions[0].epoch == 2
        # The rank that stays can say which process is new, without a silence of any rank.
        wait_for(lambda: ranks.sessions[1].epoch == 2, "the next epoch")
        call = Rendezvous(ranks.sessions[1]).roll_call()
        assert [news.since_epoch for news in call.ranks] == [2, 0]
        assert call.lease_s > 0
    finally:
        ranks.close()


def test_a_home_that_starts_again_is_asked_again(start_cluster):
    cluster = start_cluster(1)
    ranks = Ranks(cluster, 2, fresh_job("meet"), durability="process")
    try:
        first = Rendezvous(ranks.sessions[0])
        second = Rendezvous(ranks.sessions[1])
        id = first.exchange("main", b"id")
        ready = ranks.start(lambda rank: first.ready("main", id), [0])[0]
        cluster.kill(0, signal.SIGKILL)
        cluster.restart(0)
        second.ready("main", id)
        ready.result(HANG_S)
        # A call with an immediate answer does not wait until the home is back.
        cluster.kill(0, signal.SIGKILL)
        with pytest.raises(ballast.BallastError, match="the job's home is away") as away:
            second.roll_call()
        assert _rank_liveness.is_away(away.value)
        with pytest.raises(ballast.BallastError, match="the job's home is away"):
            second.give_up("main", "it is over")
    finally:
        ranks.close()
