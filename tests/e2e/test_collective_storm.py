"""A storm for collective=: trainers and servers are killed in init, sums, push, pull and gather.

A seed draws the victims, the places and the moments. With "nccl" (the fake one) a killed trainer is
restarted alone. With a process group all trainers are. Servers are started again on their data. At
the end the bits are those of a calm run, no finished round was lost, and no stretch without a
finished round was longer than a lease and 10 s.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.collective_run import Run
from e2e.zygote import Zygote

PLACES = ("init", "reduce", "push", "pull", "gather")
ROUNDS = 10
# Of the short form: a trainer in push and init, servers in reduce and pull; a trainer in reduce and
# gather, servers in push and pull.
NCCL_SEED, GLOO_SEED = 173, 315
# Of the long form, for each number of ranks and each kind of collective.
SEEDS = 12


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
    cluster: Cluster, zygote: Zygote, folder: Path, world: int, collective: str, seed: int,
    expected: int, impatient: bool = True,
) -> None:  # fmt: skip
    """Under four drawn strikes the ranks reach the checksum `expected`."""
    run = Run(cluster, zygote, folder, world, collective, ROUNDS)
    strikes = drawn(seed, cluster, world, 4)
    assert run.finish(strikes, impatient) == expected, (seed, strikes)
    left = [strike for strike in strikes if not run.struck(strike)]
    assert not left, (seed, left)
    places = [f"{strike['place']}{':server' if strike['victim'] else ''}" for strike in strikes]
    print(f"seed {seed}: {' '.join(places)}; {run.stalled_s:.1f} s without a round")


@pytest.mark.parametrize(
    ("collective", "world", "seed"), [("nccl", 4, NCCL_SEED), ("gloo", 2, GLOO_SEED)]
)
def test_a_few_kills_lose_no_round_and_no_bit(
    start_cluster, zygote, tmp_path, collective, world, seed
):
    cluster = start_cluster(2)
    expected = Run(cluster, zygote, tmp_path, world, collective, ROUNDS).finish([])
    storm(cluster, zygote, tmp_path, world, collective, seed, expected)


@pytest.mark.parametrize(
    ("zero", "one"),
    [
        # Rank 1 asks for the id that rank 0 has given and the home has forgotten.
        ("exchanged", "init"),
        # Rank 0 heard that all are ready, and rank 1 did not.
        ("agree", "told"),
    ],
)
def test_a_home_that_starts_again_in_an_init_keeps_no_rank_waiting(
    start_cluster, zygote, tmp_path, zero, one
):
    cluster = start_cluster(1)
    run = Run(cluster, zygote, tmp_path, 2, "nccl", 1)
    common = {"round": 1, "bucket": 0, "after_ms": 0.0}
    home = str(cluster.ready_file(0))
    strikes = [
        {"id": 0, "rank": 0, "place": zero, "victim": "-", **common},
        {"id": 1, "rank": 1, "place": one, "victim": home, "behind": 0, **common},
    ]
    run.finish(strikes)
    assert all(map(run.struck, strikes))
    assert "TrainerLost" not in run.logs()


@pytest.mark.long
@pytest.mark.parametrize("collective", ["nccl", "gloo"])
@pytest.mark.parametrize("world", [2, 4])
def test_many_kills_lose_no_round_and_no_bit(start_cluster, zygote, tmp_path, world, collective):
    cluster = start_cluster(2)
    expected = Run(cluster, zygote, tmp_path, world, collective, ROUNDS).finish([])
    for seed in range(SEEDS):
        impatient = seed % 2 == 0
        storm(cluster, zygote, tmp_path, world, collective, seed, expected, impatient)
