"""Every kind of optimizer end to end: 0 bits differ from torch in p and in every state array.

The reference is torch's loop (foreach=False) with a correctly rounded sqrt on the slot-order sum of
the same gradients; Lion, LAMB and apply_delta have one of their own. See oracle.py and
docs/numerics.md.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import ballast
import ballast.torch as bt
from e2e.ballastctl import ctl, export, snapshots
from e2e.cluster import HANG_S, SMALL, Trainers, error_of, error_of_step, fresh_job
from e2e.lockstep import Lockstep, Noise
from e2e.mixed_net import Gradients, Net, ballast_steps, expect_same_nets, torch_steps
from e2e.oracle import differing_bits
from e2e.small_run import parameters

SHAPES = {"weight": (64, 40), "bias": (40,), "odd": (77, 3), "scalar": ()}
LATE = {"late": (50, 32), "late_odd": (13,)}
STEPS = 100
JOINS = 40


@dataclasses.dataclass(frozen=True)
class Case:
    """kind: the class in bt and torch.optim. fixed: of the job. hyper: of (group, step)."""

    kind: str
    hyper: Callable[[int, int], dict[str, Any]]
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def torch(self) -> type[torch.optim.Optimizer]:
        return getattr(torch.optim, self.kind)


def sgd(group: int, step: int) -> dict[str, Any]:
    return {"lr": 0.1 / (1 + group) / (1 + step) ** 0.5, "weight_decay": 0.01 * group}


def momentum(group: int, step: int) -> dict[str, Any]:
    return {**sgd(group, step), "momentum": 0.9 - 0.1 * group - 0.2 / (1 + step)}


def dampening(group: int, step: int) -> dict[str, Any]:
    return {**momentum(group, step), "dampening": 0.3 + 0.1 / (1 + step)}


def some_momentum(group: int, step: int) -> dict[str, Any]:
    """Only the second group has momentum."""
    return {**sgd(group, step), "momentum": 0.9 if group == 1 else 0.0}


def adam(group: int, step: int) -> dict[str, Any]:
    return {
        "lr": 1e-2 / (1 + group) / (1 + step) ** 0.5,
        "betas": (0.9 - 0.1 * group, 0.95 + 0.04 / (1 + step)),
        "weight_decay": 0.1 * group,
    }


def adagrad(group: int, step: int) -> dict[str, Any]:
    return {"lr": 0.1 / (1 + group), "lr_decay": 1e-2 * group, "weight_decay": 0.01 * group}


def lion(group: int, step: int) -> dict[str, Any]:
    return {**adam(group, step), "lr": 1e-3 / (1 + group)}


def lamb(group: int, step: int) -> dict[str, Any]:
    """The limits of the ratio bind for some parameters."""
    return {**adam(group, step), "max_coeff": 10.0 / (1 + group), "min_coeff": 0.2 * group}


CASES = {
    "sgd": Case("SGD", sgd),
    "sgd-maximize": Case("SGD", sgd, {"maximize": True}),
    "sgd-momentum": Case("SGD", momentum),
    "sgd-some-momentum": Case("SGD", some_momentum),
    "sgd-dampening": Case("SGD", dampening),
    "sgd-nesterov": Case("SGD", momentum, {"momentum": 0.5, "nesterov": True, "maximize": True}),
    "adam": Case("Adam", adam),
    "adam-amsgrad": Case("Adam", adam, {"amsgrad": True, "maximize": True}),
    "adamw-amsgrad": Case("AdamW", adam, {"amsgrad": True}),
    "adamw-maximize": Case("AdamW", adam, {"maximize": True}),
    "adagrad": Case("Adagrad", adagrad),
    "adagrad-initial": Case(
        "Adagrad", adagrad, {"initial_accumulator_value": 0.1, "maximize": True}
    ),
    "lion": Case("Lion", lion),
    "lamb": Case("LAMB", lamb),
    "lamb-uncorrected": Case("LAMB", lamb, {"bias_correction": False}),
    "delta": Case("ApplyDelta", sgd),
}
# One of each number of state arrays, 1 to 4, for cases independent of the formula.
# And LAMB, whose rounds have two passes.
BY_ARRAYS = ["sgd", "sgd-nesterov", "adagrad-initial", "lion", "adam", "adamw-amsgrad", "lamb"]


def is_absent(i: int, slot: int, name: str) -> bool:
    return (
        (name == "odd" and i % 3 == 1)  # on all slots: neither stepped nor counted
        or (name == "bias" and slot == i % 4)  # on some: zeros from those
        or (name == "scalar" and i < 4)  # never seen before round 4
        or (name == "late_odd" and i % 7 == 3)
        or i % 50 == 7  # a round without any gradient
    )


def start(cluster, case: Case, world: int, **options: Any) -> Lockstep:
    first = {name: SHAPES[name] for name in ("weight", "bias")}
    second = {name: SHAPES[name] for name in ("odd", "scalar")}
    groups = [{"params": p, **case.hyper(g, 0)} for g, p in enumerate((first, second))]
    return Lockstep(cluster, world, groups, kind=case.kind, fixed=case.fixed, **options)


def run(lockstep: Lockstep, case: Case, noise: Noise, rounds: range) -> None:
    for i in rounds:
        for optimizer in lockstep.optimizers:
            for g, group in enumerate(optimizer.param_groups):
                group.update(case.hyper(g, i))
        lockstep.round(
            lambda slot, name, i=i: None if is_absent(i, slot, name) else noise.of(i, slot, name)
        )


def expect_torch_on(cluster, world: int, case: Case, steps: int) -> None:
    """Two groups, None gradients and a group that joins: the bits are those of torch."""
    noise = Noise({**SHAPES, **LATE})
    lockstep = start(cluster, case, world)
    run(lockstep, case, noise, range(JOINS))
    lockstep.check()
    lockstep.add_group({"params": LATE, **case.hyper(2, JOINS)})
    run(lockstep, case, noise, range(JOINS, steps))
    lockstep.finish()


@pytest.mark.parametrize("servers, world", [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("name", CASES)
def test_groups_none_gradients_and_a_late_group(clusters, name, servers, world):
    expect_torch_on(clusters(servers), world, CASES[name], STEPS)


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("servers", [1, 2, 7])
@pytest.mark.parametrize("name", CASES)
def test_300_steps_on_every_number_of_servers_and_trainers(clusters, name, servers, world):
    expect_torch_on(clusters(servers), world, CASES[name], 300)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BY_ARRAYS)
def test_16_bit_parameters_with_clipping(clusters, name, dtype):
    case, noise = CASES[name], Noise(SHAPES, dtype)
    lockstep = start(clusters(2), case, 2, dtypes=dtype, max_grad_norm=0.5, loss_scale=8.0)
    run(lockstep, case, noise, range(40))
    lockstep.finish()


@pytest.mark.parametrize("device", ["cpu", "nvme"])
@pytest.mark.parametrize("name", BY_ARRAYS)
def test_servers_that_are_killed_change_no_bit(start_cluster, name, device):
    case, noise = CASES[name], Noise({**SHAPES, **LATE})
    cluster = start_cluster(2)
    lockstep = start(
        cluster, case, 2, durability="process", device=device, reconnect_timeout=HANG_S / 2
    )
    try:
        for i in range(0, 30, 5):
            run(lockstep, case, noise, range(i, i + 5))
            cluster.strike(*((0,), (1,), (0, 1))[i // 5 % 3])
            if i == 15:
                lockstep.add_group({"params": LATE, **case.hyper(2, i)})
        lockstep.finish()
    finally:
        lockstep.trainers.abandon()


def state_of(opt: Any) -> list[torch.Tensor]:
    return [
        value
        for entry in opt.export_state()["state"].values()
        for value in entry.values()
        if value is not None
    ]


class Job:
    """A durable job of one trainer whose gradients follow from weights and round."""

    def __init__(
        self, cluster, case: Case, name: str, params: Sequence[torch.nn.Parameter] = (),
        **options: Any,
    ) -> None:  # fmt: skip
        self.params = [(f"p{i}", p) for i, p in enumerate(params or parameters())]
        arguments = {**case.hyper(1, 3), **case.fixed, **options}
        self.opt = getattr(bt, case.kind)(
            self.params, endpoints=cluster.endpoints, job=name, attach_timeout=HANG_S,
            **{**SMALL, "durability": "process", **arguments},
        )  # fmt: skip
        self.opt.attach()

    def step(self, rounds: int) -> None:
        for _ in range(rounds):
            generator = torch.Generator().manual_seed(self.opt.round)
            for _, p in self.params:
                p.grad = torch.randn(p.shape, generator=generator) + 0.1 * p.detach()
            self.opt.step()


def expect_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    assert len(a) == len(b) > 0
    assert sum(differing_bits(x, y) for x, y in zip(a, b)) == 0


@pytest.mark.parametrize("name", BY_ARRAYS)
def test_snapshots_forks_and_exports_go_on_as_the_run_did(sharing_clusters, name):
    case, cluster = CASES[name], sharing_clusters(2)
    job, exported = fresh_job(), fresh_job("export")
    calm = Job(cluster, case, job)
    calm.step(3)
    calm.opt.snapshot("third")
    at_snapshot = state_of(calm.opt)
    export(cluster, job, "--snapshot", "third", "--name", exported, "--state")
    calm.step(3)
    went_on = state_of(calm.opt)
    again = {way: fresh_job(way) for way in ("restore", "fork", "import")}
    for way in ("restore", "fork"):
        snapshots(cluster, way, job, "third", "--as", again[way])
    ctl(cluster, "import", exported, "--as", again["import"])
    for new in again.values():
        one = Job(cluster, case, new, resume="must")
        assert one.opt.round == 3
        expect_equal(state_of(one.opt), at_snapshot)
        one.step(3)
        expect_equal(state_of(one.opt), went_on)
        one.opt.close()
    calm.opt.close()


def test_an_import_of_four_arrays_in_large_extents_has_every_bit(sharing_clusters):
    """An extent of several pages and tensors: its image and the data read for it have own
    memory."""
    case, cluster = CASES["adamw-amsgrad"], sharing_clusters(1)
    large = {"tile_elements": 1024, "extent_elements": 16384}

    def params() -> list[torch.nn.Parameter]:
        generator = torch.Generator().manual_seed(3)
        return [torch.nn.Parameter(torch.randn(900, generator=generator)) for _ in range(40)]

    job, exported, imported = fresh_job(), fresh_job("export"), fresh_job("import")
    calm = Job(cluster, case, job, params(), **large)
    calm.step(3)
    calm.opt.snapshot("third")
    expected = state_of(calm.opt)
    calm.opt.close()
    export(cluster, job, "--snapshot", "third", "--name", exported, "--state")
    ctl(cluster, "import", exported, "--as", imported)
    again = Job(cluster, case, imported, params(), resume="must", **large)
    expect_equal(state_of(again.opt), expected)
    again.opt.close()


@pytest.mark.parametrize("name", BY_ARRAYS)
def test_a_trainer_that_comes_back_finds_the_state(clusters, name):
    case, cluster, job = CASES[name], clusters(2), fresh_job()
    options = {"durability": "process"}
    first = Job(cluster, case, job, **options)
    first.step(4)
    expected = state_of(first.opt)
    first.opt.close()
    second = Job(cluster, case, job, resume="must", **options)
    assert second.opt.resumed and second.opt.round == 4
    expect_equal(state_of(second.opt), expected)
    second.step(1)
    second.opt.close()


# ---- mid-run moves between torch and the service


def torch_optimizer(net: Net, case: Case) -> torch.optim.Optimizer:
    groups = [
        {"params": group["params"], **case.hyper(g, 3)} for g, group in enumerate(net.groups())
    ]
    return case.torch(groups, foreach=False, **case.fixed)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", ["load_export", "wrap"])
@pytest.mark.parametrize("name", [n for n in CASES if hasattr(torch.optim, CASES[n].kind)])
def test_torch_then_ballast_then_torch_is_torch(clusters, name, way, world):
    case, gradients, cluster = CASES[name], Gradients(world), clusters(2)
    calm, first = Net(), Net()
    reference, before = torch_optimizer(calm, case), torch_optimizer(first, case)
    torch_steps(calm, reference, gradients, range(15))
    torch_steps(first, before, gradients, range(5))
    nets = [copy.deepcopy(first) for _ in range(world)]
    source = copy.deepcopy(before.state_dict())
    groups = [torch_optimizer(n, case).param_groups for n in nets]
    trainers = Trainers(cluster, groups, kind=getattr(bt, case.kind), **case.fixed)
    if way == "load_export":
        trainers.each(lambda opt: opt.load_export(source))
    else:
        for slot, net in enumerate(nets):
            theirs = torch_optimizer(net, case)
            theirs.load_state_dict(source)
            trainers.optimizers[slot] = bt.wrap(
                theirs, endpoints=cluster.endpoints, job=trainers.job, world_size=world, rank=slot,
                attach_timeout=HANG_S, **SMALL,
            )  # fmt: skip
    ballast_steps(nets, trainers, gradients, range(5, 10))
    out = trainers.optimizers[-1].export_state()
    trainers.close()

    last = copy.deepcopy(nets[-1])
    after = torch_optimizer(last, case)
    after.load_state_dict(out)
    torch_steps(last, after, gradients, range(10, 15))
    expect_same_nets(last, calm)
    ours, theirs = after.state_dict()["state"], reference.state_dict()["state"]
    for i, state in theirs.items():
        if state.get("step") == 0:  # Adagrad's, of a frozen parameter.
            continue
        for key, value in state.items():
            if value is not None:
                assert differing_bits(ours[i][key], value) == 0, (i, key)


# ---- refusals


def test_momentum_that_comes_late_is_refused_by_name(clusters):
    trainers = Trainers(clusters(1), [parameters()], kind=bt.SGD)
    opt = trainers.optimizers[0]
    opt.step()
    opt.param_groups[0]["momentum"] = 0.9
    error = error_of_step(opt)
    assert isinstance(error, ballast.Unsupported) and "momentum=0.9 after a step" in str(error)
    opt.param_groups[0]["momentum"] = 0
    late = torch.nn.Parameter(torch.ones(5))
    opt.add_param_group({"params": [late], "momentum": 0.9})
    error = error_of_step(opt)
    assert isinstance(error, ballast.BadHyperparam), error
    assert "group 1: momentum is 0.9; the job began without momentum" in str(error)
    trainers.close()


@pytest.mark.parametrize("servers", [1, 2])
def test_momentum_that_comes_late_in_another_process_is_refused_by_the_servers(clusters, servers):
    cluster, job = clusters(servers), fresh_job()

    def begin(momentum: float, **options: Any) -> bt.SGD:
        """A process of a job whose second group has momentum from the first step on."""
        still, moving = (torch.nn.Parameter(torch.full((300,), value)) for value in (1.0, 2.0))
        for p in (still, moving):
            p.grad = torch.ones_like(p)
        opt = bt.SGD(
            [
                {"params": [("still", still)], "momentum": momentum},
                {"params": [("moving", moving)], "momentum": 0.9},
            ],
            lr=0.1, dampening=0.5, endpoints=cluster.endpoints, job=job, attach_timeout=HANG_S,
            **{**SMALL, "durability": "process"}, **options,
        )  # fmt: skip
        opt.attach()
        return opt

    first = begin(0.0)
    first.step()
    expected = state_of(first)
    first.close()
    second = begin(0.9, resume="must")
    error = error_of_step(second)
    assert isinstance(error, ballast.BadHyperparam), error
    assert "with momentum 0.9 for group 0, whose last round had momentum 0" in str(error)
    second.close()
    third = begin(0.0, resume="must")
    expect_equal(state_of(third), expected)
    third.step()
    assert third.round == 2
    third.close()


def test_another_kind_or_option_is_another_job(clusters):
    cluster = clusters(1)
    job = fresh_job()
    first = Job(cluster, CASES["sgd-nesterov"], job)
    first.step(1)
    first.opt.close()
    for name, match in (
        ("sgd-momentum", "nesterov is off, the job has on"),
        ("sgd", "momentum is off, the job has on"),
        ("adam", "optimizer is Adam, the job has SGD"),
    ):
        error = error_of(lambda n=name: Job(cluster, CASES[n], job, resume="must"))
        assert isinstance(error, ballast.SpecMismatch) and match in str(error), error


def test_a_value_out_of_range_is_refused_by_name_and_nothing_changes(clusters):
    for name, key, value, match in (
        ("sgd-momentum", "momentum", 1.5, "momentum is 1.5"),
        ("adagrad", "lr_decay", -1.0, "lr_decay is -1"),
        ("lion", "lr", float("nan"), "lr is nan"),
    ):
        job = Job(clusters(2), CASES[name], fresh_job())
        job.step(1)
        before = state_of(job.opt)
        was = job.opt.param_groups[0][key]
        job.opt.param_groups[0][key] = value
        error = error_of_step(job.opt)
        assert isinstance(error, ballast.BadHyperparam) and match in str(error), error
        expect_equal(state_of(job.opt), before)
        job.opt.param_groups[0][key] = was
        job.step(1)
        job.opt.close()
