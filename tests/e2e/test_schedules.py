"""Schedules that the service evaluates: torch's bits with the rates of docs/schedules.md."""

from __future__ import annotations

from itertools import count

import pytest
import torch

import ballast
from ballast import schedules
from ballast.schedule_rates import rates
from e2e.cluster import HANG_S, Trainers, fresh_job

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
    """The first one of each group."""
    first = [group["params"][0] for group in replica]
    return [p[1] if isinstance(p, tuple) else p for p in first]


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


@pytest.mark.parametrize("schedule, profile", EACH, ids=lambda v: getattr(v, "name", v))
def test_a_schedule_outlives_servers_and_trainers(start_cluster, schedule, profile):
    cluster = start_cluster(2)
    options = {
        "lr_schedule": schedule, "profile": profile, "durability": "process",
        "job": fresh_job(), "reconnect_timeout": HANG_S / 2,
    }  # fmt: skip
    expected, rounds = Expected(schedule, profile), count()

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


def test_late_groups_and_thawed_parameters_have_the_rates_of_their_param_groups(clusters):
    schedule = schedules.WarmupCosineLR(9, warmup_num_steps=3)
    replica = groups()
    frozen, late = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))
    replica[1]["params"].append(("frozen", frozen.requires_grad_(False)))
    trainers = Trainers(clusters(2), [replica], lr_schedule=schedule, weight_decay=0.0)
    (opt,) = trainers.optimizers
    used = []
    for i in range(4):
        if i == 1:
            frozen.requires_grad_(True)
        if i == 2:
            opt.add_param_group({"params": [("late", late)], "lr": 0.5})
        for p in opt.param_groups:
            for w in p["params"]:
                w.grad = torch.ones_like(w) if w.requires_grad else None
        opt.step()
        used.append(opt.get_last_lr())
    own = [OWN[0]["lr"], OWN[1]["lr"], 0.5]
    factors = [rates(schedule, i - 1, 0, (1.0, 0.9, 0.999), "exact")[0] for i in range(4)]
    assert used == [[lr * f for lr in own[: len(u)]] for f, u in zip(factors, used)]
    assert [lr for lr, _, _ in opt.policy["rates"]] == [
        own[0] * factors[3], own[1] * factors[3], own[1] * factors[3], own[2] * factors[3],
    ]  # fmt: skip
    # Equal gradients: AdamW moves each weight by about its lr.
    moved = 1 - frozen.detach(), 1 - late.detach()
    torch.testing.assert_close(moved[0], torch.full((8,), own[1] * sum(factors[1:])))
    torch.testing.assert_close(moved[1], torch.full((8,), own[2] * sum(factors[2:])))
    trainers.close()


def test_a_schedule_with_lists_takes_no_later_group(clusters):
    trainers = Trainers(clusters(2), [groups()], lr_schedule=EACH[0][0])
    (opt,) = trainers.optimizers
    step(opt, parameters(opt.param_groups), 0)
    with pytest.raises(ballast.BadHyperparam, match="expected 3 values for warmup_max_lr, got 2"):
        opt.add_param_group({"params": [("late", torch.nn.Parameter(torch.ones(8)))]})
    step(opt, parameters(opt.param_groups), 1)
    assert opt.round == 2
    trainers.close()


def test_another_schedule_on_one_trainer_is_refused_by_its_field(clusters):
    cluster, job = clusters(2), fresh_job()
    (first,) = Trainers(
        cluster, {0: groups()}, job, 2, lr_schedule=schedules.WarmupLR(), attach_timeout=2
    ).start(lambda opt: opt.attach())
    other = Trainers(cluster, {1: groups()}, job, 2, lr_schedule=schedules.WarmupLR(0.5))
    (second,) = other.start(lambda opt: opt.attach())
    errors = {type(e): str(e) for e in (f.exception(HANG_S) for f in (first, second))}
    assert "warmup_min_lr" in errors[ballast.SpecMismatch]
