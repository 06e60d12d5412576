"""Connections that end at their age: a durable job makes new ones between its rounds.

Comes from: pytest. Goes to: ballastd, ballast.torch.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from e2e.cluster import Cluster, Trainers, fresh_job, wait_for
from e2e.small_run import Run, assert_as_undisturbed, parameters

ROUNDS = 100
SERVERS = 2
AGED = "trainer lost: its connection has reached listen.max_connection_age"


def aged(cluster: Cluster) -> int:
    """How many streams have ended at their age, over all servers."""
    return sum(cluster.log(server).count(AGED) for server in range(SERVERS))


@pytest.fixture
def cluster(ballastd, tmp_path) -> Iterator[Cluster]:
    aging = Cluster(ballastd, SERVERS, tmp_path, BALLAST_LISTEN_MAX_CONNECTION_AGE="2s")
    try:
        aging.wait_until_serving()
        yield aging
    finally:
        aging.stop()


def test_no_round_and_no_bit_is_lost_when_connections_end_at_their_age(
    cluster, ballastd, tmp_path
):
    run = Run(cluster, fresh_job(), 2)

    def enough() -> bool:
        """After one more round: whether each stream of both trainers has ended twice."""
        run.step(1)
        return run.round >= ROUNDS and aged(cluster) >= 2 * 2 * SERVERS

    wait_for(enough, "the streams to end at their age", every_s=0)
    steps = run.round
    assert run.trainers.optimizers[0].last_report["opt_step"] == steps
    state = run.state()
    run.close()
    assert_as_undisturbed(state, ballastd, SERVERS, tmp_path / "plain", steps)


def test_a_job_without_durability_keeps_its_connections(cluster):
    brief = Trainers(cluster, [parameters()], lr=0.01)
    durable = Run(cluster, fresh_job(), 1)

    def step() -> bool:
        for parameter in brief.optimizers[0].param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        brief.step()
        durable.step(1)
        return aged(cluster) >= 2 * SERVERS

    wait_for(step, "the streams of the durable job to end twice", every_s=0)
    brief.close()
    durable.close()
