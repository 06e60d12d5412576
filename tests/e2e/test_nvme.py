"""State larger than the servers' memory budget: the same bits, whatever happens."""

from __future__ import annotations

import re

import pytest
import torch

import ballast
from e2e.ballastctl import try_ctl
from e2e.cluster import HANG_S, Trainers
from e2e.lockstep import Lockstep, Noise

# 86 extents of 96 KiB of state: on two servers four times, on one eight times the budget.
FIRST = {"embedding": (1000, 700), "bias": (257,)}
LATE = {"late": (300, 333), "later": (40,)}
OPTIONS = {"tile_elements": 4096, "extent_elements": 8192, "reconnect_timeout": HANG_S / 2}
BUDGET = {"BALLAST_STORAGE_DRAM_BUDGET": "1MiB"}


class Job:
    """Two trainers, and a check of each round's report that it was applied."""

    def __init__(self, cluster, **options) -> None:
        self.run = Lockstep(cluster, 2, [{"params": FIRST, "lr": 1e-2}], **OPTIONS, **options)
        self.noise = Noise({**FIRST, **LATE})

    def rounds(self, count: int) -> None:
        for _ in range(count):
            report = self.run.round(self.noise.at(self.run.trainers.optimizers[0].round))
            assert report["applied"]


@pytest.mark.parametrize("device", ["nvme", "auto"])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_state_many_times_the_budget_gives_the_bits_of_torch(start_cluster, servers, device):
    cluster = start_cluster(servers, **BUDGET)
    job = Job(cluster, durability="power", device=device)
    for _ in range(3):
        job.rounds(2)
        job.run.check()
    cluster.strike(*range(servers))
    job.rounds(3)
    job.run.check()
    cluster.strike(0)
    job.run.check()
    job.run.finish()


def test_groups_are_added_to_it(start_cluster):
    cluster = start_cluster(2, **BUDGET)
    job = Job(cluster, durability="process", device="nvme")
    job.rounds(3)
    job.run.add_group({"params": LATE, "lr": 3e-2, "weight_decay": 0.2})
    job.rounds(1)
    cluster.strike(0, 1)
    job.rounds(3)
    job.run.finish()


def test_rounds_that_touch_only_a_part_let_the_log_forget(start_cluster):
    cluster = start_cluster(2, **BUDGET)
    job = Job(cluster, durability="process", device="nvme")
    job.rounds(1)
    for _ in range(20):
        number = job.run.trainers.optimizers[0].round
        job.run.round(
            lambda slot, name, n=number: job.noise.of(n, slot, name) if name == "bias" else None
        )
    job.run.check()
    cluster.strike(0, 1)
    job.rounds(2)
    job.run.finish()


def test_a_server_with_other_memory_goes_on_with_the_same_bits(start_cluster):
    cluster = start_cluster(1, **BUDGET)
    job = Job(cluster, durability="power")
    job.rounds(2)
    for budget in ("64MiB", "2MiB", "1MiB"):
        cluster._servers._environ = {
            **cluster._servers._environ, "BALLAST_STORAGE_DRAM_BUDGET": budget
        }  # fmt: skip
        cluster.strike(0)
        job.rounds(3)
        job.run.check()
    job.run.finish()


def test_a_server_that_finds_less_memory_than_its_job_needs_continues_over_budget(start_cluster):
    cluster = start_cluster(1, BALLAST_STORAGE_MEMORY_BUDGET="1GiB")
    job = Job(cluster, durability="process", device="cpu")
    job.rounds(2)
    assert try_ctl(cluster, "health").returncode == 0
    less = {**cluster._servers._environ, "BALLAST_STORAGE_MEMORY_BUDGET": "16MiB"}
    cluster._servers._environ = less
    cluster.strike(0)
    job.rounds(2)
    job.run.check()
    assert cluster.log(0).count("over budget: the jobs that ran before this start need") == 1
    health = try_ctl(cluster, "health")
    assert health.returncode == 6 and "over its memory budget of 16.0 MiB" in health.stdout, health
    values = dict(line.split() for line in cluster.get(0, "/metrics").splitlines()
                  if re.match(r"ballast_memory_\w+_bytes ", line))
    assert float(values["ballast_memory_planned_bytes"]) > float(
        values["ballast_memory_budget_bytes"])
    (error,) = Trainers(cluster, [[("w", torch.nn.Parameter(torch.ones(8)))]]).errors()
    assert isinstance(error, ballast.OverBudget), error
    job.run.finish()


@pytest.mark.parametrize("options", [{"durability": "power", "device": "cpu"},
                                     {"durability": "none"}])  # fmt: skip
def test_what_must_stay_in_memory_and_does_not_fit_is_refused(start_cluster, options):
    cluster = start_cluster(1, **BUDGET)
    job = Job(cluster, **options)
    for opt in job.run.trainers.optimizers:
        for group in opt.param_groups:
            for p in group["params"]:
                p.grad = p.detach().clone()
    errors = job.run.trainers.errors()
    assert errors
    for error in errors:
        assert isinstance(error, ballast.OverBudget), error
        assert "storage.dram_budget" in str(error) and "NVMe" in str(error), error
    job.run.trainers.abandon()
