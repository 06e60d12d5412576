"""The dynamic loss scale over real servers: an fp16 model whose first rounds overflow."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import ballast
import ballast.torch as bt
from e2e import matrix_trainer
from e2e.cluster import HANG_S, Trainers, fresh_job
from serving import REPO

ROUNDS = 34  # of which the first ones overflow: 2^32 is far above what fp16 holds


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)
    ).half()


def loss_of(module, i, rank):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * i + rank))
    return module(x.half()).float().square().mean()


class Job:
    """Two trainers with fp16 models; `seen` has the scale of each backward pass."""

    def __init__(self, cluster, **options):
        self.nets = [net(), net()]
        groups = [list(n.named_parameters()) for n in self.nets]
        scale = bt.DynamicLossScale(initial_scale_power=32, loss_scale_window=4)
        self.trainers = Trainers(
            cluster, groups, loss_scale=scale, lr=1e-3, durability="process",
            reconnect_timeout=HANG_S / 2, **options,
        )  # fmt: skip
        self.seen = []

    def step(self, i):
        def one(opt):
            opt.zero_grad()
            scale = opt.loss_scale
            opt.scale(loss_of(self.nets[opt.rank], i, opt.rank)).backward()
            opt.step()
            return scale, opt.step_was_skipped

        first, second = self.trainers.each(one)
        assert first == second
        self.seen.append(first)

    def weights(self):
        flat = [torch.cat([p.detach().flatten() for p in n.parameters()]) for n in self.nets]
        assert torch.equal(*flat)
        return flat[0]

    def ends(self):
        opt = self.trainers.optimizers[0]
        return self.weights(), opt.policy, opt.opt_step, opt.skipped_steps


def test_kills_and_a_resume_change_nothing_of_the_scale(start_cluster):
    cluster = start_cluster(2)
    calm = Job(cluster)
    for i in range(ROUNDS):
        calm.step(i)
    expected = calm.ends()
    calm.trainers.close()
    skips = [skipped for _, skipped in calm.seen]
    assert calm.seen[0] == (2.0**32, True) and 10 < sum(skips) < ROUNDS - 8
    # It falls at every overflow but the first, and grows once it is low enough.
    scales = [scale for scale, _ in calm.seen]
    lowest = scales.index(min(scales))
    assert scales[2] == 2.0**31 and max(scales[lowest:]) == 2 * scales[lowest]

    name = fresh_job()
    first = Job(cluster, job=name)
    for i in range(ROUNDS // 2):
        if i in (3, 11):
            cluster.strike(i % 2)
        first.step(i)
    first.trainers.abandon()
    cluster.strike(0, 1)
    again = Job(cluster, job=name, resume="must")
    assert again.trainers.each(lambda opt: opt.attach()) == [True, True]
    for opt in again.trainers.optimizers:
        assert opt.loss_scale == calm.seen[ROUNDS // 2][0]
        assert opt.step_was_skipped == calm.seen[ROUNDS // 2 - 1][1]
        assert opt.skipped_steps == sum(skips[: ROUNDS // 2])
    for i in range(ROUNDS // 2, ROUNDS):
        if i == ROUNDS - 4:
            cluster.strike(1)
        again.step(i)
    assert first.seen + again.seen == calm.seen
    weights, *others = again.ends()
    assert torch.equal(weights, expected[0]) and others == list(expected[1:])
    again.trainers.close()


def test_unscaled_gradients_are_refused_and_the_next_try_is_a_round(clusters):
    p = torch.nn.Parameter(torch.ones(64))
    trainers = Trainers(clusters(2), [[("p", p)]], loss_scale="dynamic")
    (opt,) = trainers.optimizers
    p.grad = torch.ones(64)
    with pytest.raises(ballast.LossScaleMismatch, match=r"65536.*opt\.scale\(loss\)"):
        opt.step()
    assert torch.equal(p, torch.ones(64)) and opt.round == 0
    p.grad = torch.ones(64) * opt.loss_scale
    opt.step()
    assert (opt.round, opt.grad_norm, opt.step_was_skipped) == (1, 8.0, False)
    trainers.close()


def test_an_overflow_at_the_smallest_scale_halts_the_job(clusters):
    p = torch.nn.Parameter(torch.ones(64))
    scale = bt.DynamicLossScale(initial_scale_power=1, hysteresis=1)
    trainers = Trainers(clusters(2), [[("p", p)]], loss_scale=scale)
    (opt,) = trainers.optimizers
    for expected in (2.0, 1.0):
        assert opt.loss_scale == expected
        p.grad = torch.full((64,), float("inf"))
        if expected > 1:
            opt.step()
            assert opt.step_was_skipped
    with pytest.raises(ballast.NonfiniteGradient, match="minimum"):
        opt.step()
    assert torch.equal(p, torch.ones(64))
    trainers.close()


def test_the_example_trains_and_says_what_was_skipped(ballastd):
    done = subprocess.run(
        [sys.executable, "-m", "ballast.run", "--nproc", "2", "--server-binary", str(ballastd),
         str(REPO / "examples" / "fp16.py"), "20"],
        env=matrix_trainer.environment(), capture_output=True, text=True, timeout=2 * HANG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (said,) = {line[4:] for line in done.stdout.splitlines() if "applied" in line}
    counts = re.fullmatch(r"(\d+) of 20 rounds applied, (\d+) skipped", said)
    applied, skipped = map(int, counts.groups())
    assert applied + skipped == 20 and applied > 0 and skipped > 0
