"""Loss scale and schedule in copies of a job, after loads, and for trainers that join it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import ballast.torch as bt
from ballast.schedules import WarmupLR
from e2e.ballastctl import ctl, export, snapshots
from e2e.cluster import HANG_S, Trainers, fresh_job

OVERFLOWS = (1, 2)  # rounds, from 0


class Job:
    """A job of one trainer, whose gradients follow from the round."""

    def __init__(self, cluster, name, slot=0, **options):
        self.p = torch.nn.Parameter(torch.ones(300))
        scale = bt.DynamicLossScale(initial_scale_power=8, hysteresis=1, loss_scale_window=2)
        self.trainers = Trainers(
            cluster, {slot: [("p", self.p)]}, name, lr=0.1, durability="process", loss_scale=scale,
            lr_schedule=WarmupLR(warmup_num_steps=4, warmup_type="linear"), **options,
        )  # fmt: skip
        (self.opt,) = self.trainers.optimizers
        self.opt.attach()

    def step(self, rounds):
        for _ in range(rounds):
            value = float("inf") if self.opt.round in OVERFLOWS else 0.5 + self.opt.round
            self.p.grad = torch.full((300,), value) * self.opt.loss_scale
            self.opt.step()

    def said(self):
        """All that a script sees of the policy, and the weights."""
        opt = self.opt
        policy = {k: v for k, v in opt.policy.items() if k != "why_skipped"}
        return policy, opt.get_last_lr(), opt.skipped_steps, opt.opt_step, self.p.tolist()


@pytest.mark.parametrize("way", ["restore", "fork", "import"])
def test_a_copy_of_a_job_goes_on_with_its_scale_and_schedule(sharing_clusters, way):
    cluster, name, copy = sharing_clusters(2), fresh_job(), fresh_job(way)
    calm = Job(cluster, name)
    calm.step(4)
    calm.opt.snapshot("fourth")
    at_snapshot = calm.said()
    assert (calm.opt.loss_scale, calm.opt.skipped_steps, calm.opt.opt_step) == (64.0, 2, 2)
    if way == "import":
        exported = fresh_job("export")
        export(cluster, name, "--snapshot", "fourth", "--name", exported, "--state")
        ctl(cluster, "import", exported, "--as", copy)
    else:
        snapshots(cluster, way, name, "fourth", "--as", copy)
    calm.step(4)
    again = Job(cluster, copy, resume="must")
    assert again.opt.round == 4
    assert again.said() == at_snapshot
    again.step(4)
    assert again.said() == calm.said()
    for job in (calm, again):
        job.trainers.close()


def test_state_that_is_loaded_leaves_scale_and_schedule_where_they_are(clusters):
    cluster = clusters(2)
    job, source = Job(cluster, fresh_job()), Job(cluster, fresh_job())
    job.step(3)
    source.step(5)
    before = job.said()
    job.opt.load_export(source.opt.export_state())
    policy, lrs, skipped, opt_step, weights = job.said()
    assert (policy, lrs, skipped) == before[:3]
    assert (opt_step, weights) == (source.opt.opt_step, source.p.tolist())
    job.step(1)
    assert not job.opt.step_was_skipped
    for each in (job, source):
        each.trainers.close()


def test_a_trainer_that_joins_has_the_scale_and_the_rates_of_the_others(prompt_clusters):
    cluster, name = prompt_clusters(2), fresh_job()
    options = {"variable_world": True, "resume": "auto"}
    first = Job(cluster, name, world=1, **options)
    first.step(3)
    second = Job(cluster, name, slot=1, world=2, **options)
    assert second.opt.resumed and second.said() == first.said()
    assert second.opt.loss_scale == 64.0 and second.opt.step_was_skipped
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            for each in [pool.submit(job.step, 1) for job in (first, second)]:
                each.result(HANG_S)
            assert second.said() == first.said()
    assert (first.opt.opt_step, first.opt.world_size) == (3, 2)
    for job in (second, first):
        job.trainers.close()
