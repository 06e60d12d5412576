"""Groups added to a durable job, while servers are killed at every point of it.

The bits afterwards are those of an undisturbed torch with the same groups.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import ballast
from e2e.cluster import HANG_S, Cluster, wait_for
from e2e.lockstep import Lockstep, Noise

FIRST = {"embedding": (300, 200), "bias": (256,)}
LATE = {"late": (111, 133), "later": (40,)}
OPTIONS = {"tile_elements": 4096, "extent_elements": 8192, "reconnect_timeout": HANG_S / 2}
# Making the new files, filling them, the record, and the initial weights of the new groups: each
# server owns four extents before and one after.
POINTS = [
    "growth.before_state=1*kill",
    "images.before_write=1*kill",
    "images.after_write=2*off->1*kill",
    "images.before_sync=1*kill",
    "images.after_sync=1*kill",
    "log.before_append=1*kill",
    "log.after_append=1*off->1*kill",
    "growth.after_state=1*kill",
    "growth.after_state=1*kill",
    "growth.before_record=1*kill",
    "growth.after_record=1*kill",
    "images.before_write=4*off->1*kill",
    "images.after_sync=1*off->1*kill",
]


class Growing:
    """A job of two trainers after three rounds."""

    def __init__(self, cluster: Cluster, durability: str) -> None:
        self.run = Lockstep(cluster, 2, [{"params": FIRST, "lr": 1e-2}], durability=durability,
                            **OPTIONS)  # fmt: skip
        self.noise = Noise({**FIRST, **LATE})
        self.rounds(3)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            report = self.run.round(self.noise.at(self.run.trainers.optimizers[0].round))
            assert report["applied"]

    def add(self) -> None:
        self.run.add_group({"params": LATE, "lr": 3e-2, "weight_decay": 0.2})


@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_groups_are_added_and_survive_the_servers(start_cluster, servers, durability):
    cluster = start_cluster(servers)
    job = Growing(cluster, durability)
    job.add()
    job.rounds(1)
    cluster.strike(*range(servers))
    job.rounds(2)
    cluster.strike(0)
    job.run.check()
    job.rounds(4)
    job.run.finish()


def test_every_failpoint_of_growing_kills_a_server_here(ballastd):
    """The kill storm dies at all the others; its jobs do not grow."""
    names = subprocess.run([str(ballastd), "--list-failpoints"], check=True, capture_output=True,
                           text=True).stdout.split()  # fmt: skip
    ours = {point.split("=")[0] for point in POINTS}
    assert {name for name in names if name.startswith("growth.")} <= ours <= set(names)


@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize("point", POINTS)
def test_a_server_killed_at_any_point_of_it(start_cluster, point, server):
    cluster = start_cluster(2)
    job = Growing(cluster, "power")
    cluster.arm(server, point)
    job.add()
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(job.rounds, 1)
        try:
            wait_for(lambda: not cluster.running()[server] or step.done(), "the failpoint")
            assert not step.done(), step.exception()
            cluster.restart(server)
            step.result(HANG_S)
            job.rounds(2)
            cluster.strike(0, 1)
            job.rounds(2)
            job.run.finish()
        finally:
            job.run.trainers.abandon()


def test_a_group_that_does_not_fit_is_refused_and_the_job_goes_on(start_cluster):
    cluster = start_cluster(2, BALLAST_STORAGE_DRAM_BUDGET="64MiB")
    job = Growing(cluster, "power")
    huge = torch.nn.Parameter(torch.ones(4096, 4096))
    for opt in job.run.trainers.optimizers:
        opt.add_param_group({"params": [("huge", huge)]})
    for error in job.run.trainers.errors():
        assert isinstance(error, ballast.OverBudget), error
    for opt in job.run.trainers.optimizers:
        opt.param_groups.pop()
    job.rounds(2)
    job.add()
    job.rounds(2)
    job.run.finish()
