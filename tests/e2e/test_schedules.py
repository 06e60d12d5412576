"""Schedules that the service evaluates: torch's bits with the rates of docs/schedules.md."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from ballast import schedules
from e2e.cluster import HANG_S, Trainers, fresh_job
from e2e.schedule_oracle import rates

SIZES = (640, 320)  # multiples of 8, for which torch's fused AdamW is exact
OWN = ({"lr": 3e-3, "betas": (0.9, 0.999)}, {"lr": 1e-2, "betas": (0.8, 0.95)})
SKIPPED = 3  # a round whose gradient is not finite

EACH = [
    (schedules.WarmupLR(0.0, [1e-3, 2e-3], 4), "exact"),
    (schedules.WarmupLR(warmup_num_steps=3, warmup_type="linear"), "exact"),
    (schedules.WarmupDecayLR(9, 1e-5, warmup_max_lr=2e-3, warmup_num_steps=3), "deepspeed"),
    (schedules.WarmupCosineLR(9, 0.125, 3), "exact"),
    (schedules.LRRangeTest([1e-4, 2e-4], 2, 0.5, lr_range_test_staircase=True), "exact"),
    (schedules.OneCycle(1e-4, [1e-3, 2e-3], 0.25, 3, 2, decay_step_size=2, cycle_min_mom=0.7,
                        decay_mom_rate=-0.125), "exact"),
    (schedules.OneCycle(1e-4, 1e-3, cycle_first_step_size=3), "deepspeed"),
]  # fmt: skip


def groups():
    generator = torch.Generator().manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in SIZES]
    return [{"params": [(str(i), w)], **OWN[i]} for i, w in enumerate(weights)]


def parameters(replica):
    return [group["params"][0][1] for group in replica]


def gradient(i, size):
    values = torch.randn(size, generator=torch.Generator().manual_seed(100 + i))
    return values if i != SKIPPED else values.fill_(float("inf"))


class Expected:
    """The job as torch and the page of schedules have it."""

    def __init__(self, schedule, profile):
        self.index, self._of = -1, lambda group, i: rates(
            schedule, i, group, (OWN[group]["lr"], *OWN[group]["betas"]), profile
        )
        self.weights = parameters(groups())
        self._opt = torch.optim.AdamW(
            [{"params": [w]} for w in self.weights], fused=True, weight_decay=0.01
        )
        self.used = []

    def round(self, i):
        """Round i, and the rates that it uses."""
        self.used = [self._of(group, self.index) for group in range(len(SIZES))]
        if i == SKIPPED:
            return
        for (lr, beta1, beta2), w, group in zip(self.used, self.weights, self._opt.param_groups):
            group.update(lr=lr, betas=(beta1, beta2))
            w.grad = gradient(i, w.numel())
        self._opt.step()
        self.index += 1


def step(opt, weights, i):
    for w in weights:
        w.grad = gradient(i, w.numel())
    opt.step()


def expect(trainers, replicas, expected):
    for opt, weights in zip(trainers.optimizers, replicas):
        assert all(torch.equal(a, b) for a, b in zip(weights, expected.weights))
        assert opt.get_last_lr() == [lr for lr, _, _ in expected.used]
        assert opt.policy["rates"] == expected.used
        assert opt.policy["schedule_index"] == expected.index


@pytest.mark.parametrize("schedule, profile", EACH, ids=lambda v: getattr(v, "name", v))
def test_a_schedule_steps_each_group_with_its_rates(clusters, schedule, profile):
    replicas, expected = [groups(), groups()], Expected(schedule, profile)
    trainers = Trainers(clusters(2), replicas, lr_schedule=schedule, profile=profile)
    weights = [parameters(replica) for replica in replicas]
    for i in range(10):
        trainers.each(lambda opt, i=i: step(opt, weights[opt.rank], i))
        expected.round(i)
        expect(trainers, weights, expected)
    betas = [group["betas"] for group in trainers.optimizers[0].param_groups]
    assert betas == [(beta1, beta2) for _, beta1, beta2 in expected.used]
    assert [opt.skipped_steps for opt in trainers.optimizers] == [1, 1]
    trainers.close()


def test_a_schedule_outlives_servers_and_trainers(start_cluster):
    cluster, schedule = start_cluster(2), EACH[5][0]
    options = {
        "lr_schedule": schedule, "durability": "process", "job": fresh_job(),
        "reconnect_timeout": HANG_S / 2,
    }  # fmt: skip
    expected, rounds = Expected(schedule, "exact"), count()

    def run(trainers, weights, struck):
        """A round per item; the servers in it are killed before."""
        for servers in struck:
            i = next(rounds)
            cluster.strike(*servers)
            trainers.each(lambda opt, i=i: step(opt, weights[opt.rank], i))
            expected.round(i)
            expect(trainers, weights, expected)

    replicas = [groups(), groups()]
    trainers = Trainers(cluster, replicas, **options)
    run(trainers, [parameters(r) for r in replicas], [(), (0,), (), (), (1,), (0, 1)])
    trainers.abandon()

    cluster.strike(0)
    fresh = [groups(), groups()]
    again = Trainers(cluster, fresh, resume="must", **options)
    assert again.each(lambda opt: opt.attach()) == [True, True]
    weights = [parameters(replica) for replica in fresh]
    expect(again, weights, expected)
    run(again, weights, [(), (1,), ()])
    again.close()
