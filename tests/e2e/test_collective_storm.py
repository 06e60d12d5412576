"""A storm for collective=: trainers and servers are killed in init, sums, push, pull and gather.

A seed draws the victims, the places and the moments. With "nccl" (the fake one) a trainer that was
killed is started again alone. With a process group all trainers are. Servers are started again on
their data. At the end the bits are those of a calm run, no finished round was lost, and no stretch
without a finished round was longer than a lease and 10 s.
"""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import HANG_S, Cluster, fresh_job
from e2e.lateness import Lateness
from e2e.zygote import Zygote

PLACES = ("init", "reduce", "push", "pull", "gather")
LEASE_S = 10.0  # the servers' default
STALL_S = LEASE_S + 10.0
GROUP_S = 8.0
GROUP_LOST = 3  # of storm_trainer.py
ROUNDS = 10
# Of the short form: a trainer in push and init, servers in reduce and pull; a trainer in reduce and
# gather, servers in push and pull.
NCCL_SEED, GLOO_SEED = 173, 315
# Of the long form, for each number of ranks and each kind of collective.
SEEDS = 12


class Run:
    """One job from its first round to its last, under strikes."""

    def __init__(
        self, cluster: Cluster, zygote: Zygote, folder: Path, world: int, group: bool, rounds: int
    ) -> None:
        self._cluster, self._zygote, self._group, self._world = cluster, zygote, group, world
        self._job, self._rounds = fresh_job("storm"), rounds
        self._folder = folder / self._job
        self._folder.mkdir()
        self._starts = 0
        self.stalled_s = 0.0  # the longest time without a finished round

    def finish(self, strikes: list[dict[str, Any]], impatient: bool = True) -> int:
        """The checksum of all ranks' weights. impatient: the others of a process group are killed,
        as torchrun does; else they end by themselves."""
        ranks = self._start_all(strikes)
        try:
            with Lateness() as lateness:
                self._watch(ranks, strikes, lateness, impatient)
        finally:
            for pid in ranks.values():
                if self._zygote.code(pid) is None:
                    self._zygote.kill(pid)
        files = [self._folder / f"result-{rank}" for rank in range(self._world)]
        said = [json.loads(file.read_text()) for file in files]
        assert {result["round"] for result in said} == {self._rounds}
        (digest,) = {result["digest"] for result in said}
        return digest

    def struck(self, strike: dict[str, Any]) -> bool:
        return (self._folder / f"struck-{strike['id']}").exists()

    def _watch(
        self, ranks: dict[int, int], strikes: list, lateness: Lateness, impatient: bool
    ) -> None:
        seen, since = 0, time.monotonic()
        while any(self._zygote.code(pid) != 0 for pid in ranks.values()):
            self._zygote.wait(0.02)
            self._restart_servers()
            self._restart_ranks(ranks, strikes, impatient)
            now, finished = time.monotonic(), self._finished()
            self.stalled_s = max(self.stalled_s, now - since - lateness.since(since))
            assert self.stalled_s < STALL_S, f"round {seen + 1} hangs\n{self._logs()}"
            if finished > seen:
                seen, since = finished, now

    def _restart_servers(self) -> None:
        for server, alive in enumerate(self._cluster.running()):
            if not alive:
                self._cluster.restart(server)

    def _restart_ranks(self, ranks: dict[int, int], strikes: list, impatient: bool) -> None:
        codes = {rank: self._zygote.code(pid) for rank, pid in ranks.items()}
        bad = {-signal.SIGKILL, GROUP_LOST} if self._group else {-signal.SIGKILL}
        for rank, code in codes.items():
            assert code in {None, 0, *bad}, f"rank {rank} ended with {code}\n{self._logs()}"
        ended = [rank for rank, code in codes.items() if code in bad]
        if not self._group:
            ranks.update({rank: self._start(rank, strikes) for rank in ended})
        elif ended and all(code is not None for code in codes.values()):
            ranks.update(self._start_all(strikes))
        elif ended and impatient:
            for rank, code in codes.items():
                if code is None:
                    self._zygote.kill(ranks[rank])

    def _start_all(self, strikes: list) -> dict[int, int]:
        self._starts += 1
        return {rank: self._start(rank, strikes) for rank in range(self._world)}

    def _start(self, rank: int, strikes: list) -> int:
        own = [{k: v for k, v in strike.items() if k != "rank"}
               for strike in strikes if strike["rank"] == rank]  # fmt: skip
        return self._zygote.start({
            "endpoints": self._cluster.endpoints, "job": self._job, "rank": rank,
            "world": self._world, "folder": str(self._folder), "rounds": self._rounds,
            "group": str(self._folder / f"group-{self._starts}") if self._group else "",
            "group_s": GROUP_S, "strikes": own, "log": str(self._folder / f"log-{rank}"),
        })  # fmt: skip

    def _finished(self) -> int:
        files = [self._folder / f"done-{rank}" for rank in range(self._world)]
        return min(int(file.read_text()) if file.exists() else 0 for file in files)

    def _logs(self) -> str:
        texts = [f"--- {log.name}\n{log.read_text()[-3000:]}" for log in self._folder.glob("log-*")]
        return "\n".join(texts)


def drawn(seed: int, cluster: Cluster, world: int, count: int) -> list[dict[str, Any]]:
    """`count` strikes, two rounds apart: half of them at servers."""
    draw = random.Random(seed)
    strikes: list[dict[str, Any]] = []

    def strike(round: int, place: str, rank: int, victim: str, after_ms: float = 0.0) -> None:
        bucket = draw.randrange(3)
        strikes.append({"id": len(strikes), "round": round, "place": place, "rank": rank,
                        "victim": victim, "bucket": bucket, "after_ms": after_ms})  # fmt: skip

    for i in range(count):
        round, place, rank = 2 + 2 * i, draw.choice(PLACES), draw.randrange(world)
        server = draw.randrange(len(cluster.endpoints))
        victim = str(cluster.ready_file(server)) if draw.random() < 0.5 else ""
        if place == "init":  # There is one when a trainer is lost.
            strike(round, "reduce", (rank + 1) % world, "")
        strike(round, place, rank, victim, draw.choice([0.0, draw.uniform(0, 20)]))
    return strikes


def storm(
    cluster: Cluster, zygote: Zygote, folder: Path, world: int, group: bool, seed: int, count: int,
    expected: int, impatient: bool = True,
) -> None:  # fmt: skip
    """Under `count` drawn strikes the ranks come to the checksum `expected`."""
    run = Run(cluster, zygote, folder, world, group, ROUNDS)
    strikes = drawn(seed, cluster, world, count)
    assert run.finish(strikes, impatient) == expected, (seed, strikes)
    left = [strike for strike in strikes if not run.struck(strike)]
    assert not left, (seed, left)
    places = [f"{strike['place']}{':server' if strike['victim'] else ''}" for strike in strikes]
    print(f"seed {seed}: {' '.join(places)}; {run.stalled_s:.1f} s without a round")


def calm(cluster: Cluster, zygote: Zygote, folder: Path, world: int, group: bool) -> int:
    return Run(cluster, zygote, folder, world, group, ROUNDS).finish([])


@pytest.mark.parametrize(("group", "seed"), [(False, NCCL_SEED), (True, GLOO_SEED)])
def test_a_few_kills_lose_no_round_and_no_bit(start_cluster, zygote, tmp_path, group, seed):
    cluster = start_cluster(2)
    expected = calm(cluster, zygote, tmp_path, 2, group)
    storm(cluster, zygote, tmp_path, 2, group, seed, 4, expected)


@pytest.mark.long
@pytest.mark.parametrize("group", [False, True], ids=["nccl", "gloo"])
@pytest.mark.parametrize("world", [2, 4])
def test_many_kills_lose_no_round_and_no_bit(start_cluster, zygote, tmp_path, world, group):
    cluster = start_cluster(2)
    expected = calm(cluster, zygote, tmp_path, world, group)
    for seed in range(SEEDS):
        storm(cluster, zygote, tmp_path, world, group, seed, 4, expected, impatient=seed % 2 == 0)
