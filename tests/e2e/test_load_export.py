"""Optimizer state into a running job and out again: torch, then Ballast, then torch, 0 bits differ.

The reference is one torch.optim.AdamW that takes all steps; see oracle.py for the root it takes.
"""

from __future__ import annotations

import copy
import random
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from ballast.torch import load
from e2e.cluster import HANG_S, Trainers, error_of, fresh_job, wait_for
from e2e.lockstep import Noise
from e2e.oracle import ARRAYS, differing_bits, rounded_sqrt, scale, slot_order_sum

SHAPES = {"weight": (64, 40), "odd": (77, 3), "bias": (40,), "scalar": (), "silent": (9,)}


class Net(nn.Module):
    """All kinds of parameters: tied, frozen, one without a gradient for a while, 16-bit ones."""

    def __init__(self, dtypes: dict[str, torch.dtype] | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name, shape in SHAPES.items():
            value = torch.randn(shape, generator=generator) / 8
            dtype = (dtypes or {}).get(name, torch.float32)
            self.register_parameter(name, nn.Parameter(value.to(dtype)))
        self.tied = self.weight
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)

    def groups(self) -> list[dict]:
        return [
            {"params": [self.weight, self.bias], "lr": 1e-2, "weight_decay": 0.1},
            {
                "params": [self.odd, self.frozen, self.silent, self.scalar],
                "lr": 3e-3,
                "betas": (0.8, 0.95),
                "eps": 1e-6,
                "weight_decay": 0.0,
            },
        ]

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: getattr(self, name) for name in SHAPES}


class Gradients:
    """The same for everybody; "silent" has none before round 7."""

    def __init__(self, world: int, dtypes: dict[str, torch.dtype] | None = None) -> None:
        every = {name: (dtypes or {}).get(name, torch.float32) for name in SHAPES}
        self._noise, self._world = Noise(SHAPES, every), world

    def of(self, step: int, slot: int, name: str) -> torch.Tensor | None:
        return None if name == "silent" and step < 7 else self._noise.of(step, slot, name)

    def give(self, net: Net, step: int, slot: int) -> None:
        for name, parameter in net.trained().items():
            parameter.grad = self.of(step, slot, name)

    def give_mean(self, net: Net, step: int) -> None:
        for name, parameter in net.trained().items():
            total = slot_order_sum([self.of(step, s, name) for s in range(self._world)])
            parameter.grad = None if total is None else total * scale(self._world)


def torch_steps(net, optimizer, gradients, steps) -> None:
    for step in steps:
        gradients.give_mean(net, step)
        with rounded_sqrt():
            optimizer.step()


def ballast_steps(nets, trainers, gradients, steps) -> None:
    for step in steps:
        for slot, net in enumerate(nets):
            gradients.give(net, step, slot)
        trainers.step()


def torch_adamw(net: Net) -> torch.optim.AdamW:
    return torch.optim.AdamW(net.groups(), foreach=False)


def expect_same_nets(a: Net, b: Net) -> None:
    for name, parameter in a.named_parameters():
        assert differing_bits(parameter, dict(b.named_parameters())[name]) == 0, name


def expect_same_state(a: dict, b: dict, keys=(*ARRAYS, "step")) -> None:
    assert set(a["state"]) == set(b["state"])
    for i, state in a["state"].items():
        for key in keys:
            assert differing_bits(state[key], b["state"][i][key]) == 0, (i, key)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("way", ["load_export", "wrap"])
def test_torch_then_ballast_then_torch_is_torch(clusters, servers, world, way):
    gradients = Gradients(world)
    calm = Net()
    reference = torch_adamw(calm)
    torch_steps(calm, reference, gradients, range(15))

    first = Net()
    before = torch_adamw(first)
    torch_steps(first, before, gradients, range(5))
    nets = [copy.deepcopy(first) for _ in range(world)]
    if way == "load_export":
        trainers = Trainers(clusters(servers), [n.groups() for n in nets], lr=0.5)
        source = before.state_dict()
        trainers.each(lambda opt: opt.load_export(source))
    else:
        trainers = wrapped(clusters(servers), nets, before.state_dict())
    ballast_steps(nets, trainers, gradients, range(5, 10))
    opt = trainers.optimizers[-1]
    assert (opt.round, opt.opt_step) == (8, 10)
    out = opt.export_state()
    trainers.close()

    last = copy.deepcopy(nets[-1])
    after = torch_adamw(last)
    after.load_state_dict(out)
    assert [g["lr"] for g in after.param_groups] == [1e-2, 3e-3]
    torch_steps(last, after, gradients, range(10, 15))
    expect_same_nets(last, calm)
    expect_same_state(
        after.state_dict(), reference.state_dict(), keys=("exp_avg", "exp_avg_sq", "step")
    )


def wrapped(cluster, nets: list[Net], state: dict) -> Trainers:
    """Trainers whose optimizers are wrapped torch ones that have stepped."""
    trainers = Trainers(cluster, [n.groups() for n in nets])
    own = {"tile_elements": 64, "extent_elements": 128, "durability": "none"}
    for slot, net in enumerate(nets):
        theirs = torch_adamw(net)
        theirs.load_state_dict(state)
        trainers.optimizers[slot] = bt.wrap(
            theirs, endpoints=cluster.endpoints, job=trainers.job, world_size=len(nets), rank=slot,
            attach_timeout=HANG_S, **own,
        )  # fmt: skip
    return trainers


def test_a_late_group_is_loaded_with_the_others(clusters):
    gradients = Gradients(2)
    source_net = Net()
    source = torch_adamw(source_net)
    torch_steps(source_net, source, gradients, range(9))
    nets = [Net(), Net()]
    trainers = Trainers(clusters(2), [n.groups()[:1] for n in nets])
    ballast_steps(nets, trainers, gradients, range(2))
    for opt, net in zip(trainers.optimizers, nets):
        opt.add_param_group(net.groups()[1])
        net.load_state_dict(source_net.state_dict())
    saved = source.state_dict()
    trainers.each(lambda opt: opt.load_export(saved))
    for steps in (range(9, 10), range(10, 11)):
        torch_steps(source_net, source, gradients, steps)
        ballast_steps(nets, trainers, gradients, steps)
        for net in nets:
            expect_same_nets(net, source_net)
    trainers.close()


MIXED = {"weight": torch.bfloat16, "bias": torch.float16, "odd": torch.bfloat16}


@pytest.mark.parametrize("init", ["equal", "broadcast"])
def test_16_bit_parameters_keep_every_bit_of_their_masters(clusters, init):
    gradients = Gradients(2, MIXED)
    nets = [Net(MIXED), Net(MIXED)]
    first = Trainers(clusters(2), [n.groups() for n in nets])
    ballast_steps(nets, first, gradients, range(9))
    source = first.optimizers[0].export_state()
    others = [Net(MIXED), Net(MIXED)]
    with torch.no_grad():
        for net in others:
            net.weight.add_(1)
    second = Trainers(clusters(1), [n.groups() for n in others], init=init)
    second.each(lambda opt: opt.load_export(source))
    assert second.optimizers[1].round == 6 and second.optimizers[1].opt_step == 9
    loaded = second.optimizers[1].export_state()
    expect_same_state(source, loaded)
    assert any((s["master"].view(torch.int32) & 0xFFFF).any() for s in loaded["state"].values())
    for step in (range(9, 11), range(11, 12)):
        ballast_steps(nets, first, gradients, step)
        ballast_steps(others, second, gradients, step)
        for net in others:
            expect_same_nets(net, nets[0])
    first.close()
    second.close()


def test_bits_that_are_no_numbers_arrive_as_they_are(clusters):
    net = Net(MIXED)
    opt = Trainers(clusters(2), [net.groups()]).optimizers[0]
    opt.attach()
    source = opt.export_state()
    chance = torch.Generator().manual_seed(3)
    for state in source["state"].values():
        for key in ARRAYS:
            bits = torch.randint(-(2**31), 2**31, state[key].shape, generator=chance)
            state[key] = bits.to(torch.int32).view(torch.float32)
    opt.load_export(source)
    expect_same_state(source, opt.export_state())
    opt.close()


def test_trainers_with_other_state_get_an_error_that_names_the_tensor(clusters):
    source = {"state": {}, "param_groups": torch_adamw(Net()).state_dict()["param_groups"]}
    zeros = {"step": 3, "exp_avg": torch.zeros(77, 3), "exp_avg_sq": torch.zeros(77, 3)}
    for change, match in (
        ({"exp_avg": torch.ones(77, 3)}, 'first moments of tensor "g1.p0" that slot'),
        ({"step": 4}, "step counts"),
    ):
        trainers = Trainers(clusters(2), [Net().groups(), Net().groups()])
        trainers.each(lambda opt: opt.attach())
        sources = [{**source, "state": {2: state}} for state in (zeros, {**zeros, **change})]
        for error in trainers.each(
            lambda opt, s=sources: error_of(lambda: opt.load_export(s[opt.rank]))
        ):
            assert isinstance(error, ballast.InitMismatch) and match in str(error), error
        trainers.close()


def test_a_trainer_that_steps_instead_is_an_error_for_all(clusters):
    nets = [Net(), Net()]
    trainers = Trainers(clusters(2), [n.groups() for n in nets])
    trainers.each(lambda opt: opt.attach())
    first, second = trainers.optimizers
    source = torch_adamw(Net()).state_dict()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(error_of, lambda: second.load_export(source))
        with pytest.raises(ballast.InitMismatch, match="slot 1 uploads masters .* slot 0 steps"):
            first.step()
        assert isinstance(other.result(HANG_S), ballast.InitMismatch)
    trainers.close()


@pytest.mark.parametrize("durability, seed", [("power", 1), ("process", 2)])
def test_servers_killed_while_state_is_loaded(start_cluster, durability, seed):
    """kill -9 at random bytes of the rounds, also of both servers at once."""
    cluster, chance = start_cluster(2), random.Random(seed)
    gradients = Gradients(2, MIXED)
    nets = [Net(MIXED), Net(MIXED)]
    trainers = Trainers(
        cluster, [n.groups() for n in nets], durability=durability, reconnect_timeout=HANG_S / 2
    )
    ballast_steps(nets, trainers, gradients, range(8))
    sources = [trainers.optimizers[0].export_state()]
    ballast_steps(nets, trainers, gradients, range(8, 9))
    sources.append(trainers.optimizers[0].export_state())
    opt = trainers.optimizers[0]

    def moved() -> int:
        return opt.counters["payload_up_bytes"] + opt.counters["payload_down_bytes"]

    started = moved()
    trainers.each(lambda opt: opt.load_export(sources[0]))
    all_bytes = moved() - started
    with ThreadPoolExecutor(1) as pool:
        try:
            for i in range(1, 7):
                at = moved() + int(chance.uniform(0, 1) * all_bytes)
                part = pool.submit(trainers.each, lambda opt: opt.load_export(sources[i % 2]))
                wait_for(lambda at=at: moved() >= at or part.done(), "bytes", every_s=0.0005)
                cluster.strike(*chance.choice([(0,), (1,), (0, 1)]))
                part.result(HANG_S)
                for slot in (0, 1):
                    expect_same_state(sources[i % 2], trainers.optimizers[slot].export_state())
                assert opt.opt_step == 8 + i % 2
            trainers.close()
        finally:
            trainers.abandon()


def first_planes(count: int):
    """load.planes that ends the trainer after `count` rounds."""

    def cut(*args):
        for i, plane in enumerate(real(*args)):
            if i == count:
                raise KeyboardInterrupt
            yield plane

    real = load.planes
    return mock.patch.object(load, "planes", cut)


def export_of(cluster, world: int = 1) -> dict:
    """State of a job with 16-bit parameters after 8 steps."""
    nets = [Net(MIXED) for _ in range(world)]
    trainers = Trainers(cluster, [n.groups() for n in nets])
    ballast_steps(nets, trainers, Gradients(world, MIXED), range(8))
    source = trainers.optimizers[0].export_state()
    trainers.close()
    return source


def other_than(source: dict) -> dict:
    other = copy.deepcopy(source)
    for state in other["state"].values():
        state["exp_avg"].add_(1)
    return other


class Seats:
    """Trainers of a durable job that are started one by one, and load `source` if nobody has."""

    def __init__(self, cluster, world: int, way: str = "load_export") -> None:
        self._cluster, self._way = cluster, way
        self._options = {"durability": "power", "job": fresh_job(), "world": world}
        self._options["reconnect_timeout"] = HANG_S / 2

    def start(self, slot: int, source: dict, resume: str = "auto") -> Trainers:
        groups = {slot: Net(MIXED).groups()}
        trainers = Trainers(self._cluster, groups, resume=resume, **self._options)
        if self._way == "wrap":
            trainers.optimizers[0]._carry(source)
        trainers.source = source
        return trainers

    def begin(self, trainers: Trainers):
        def call(opt: bt.AdamW) -> None:
            opt.attach()
            if self._way == "load_export" and opt.opt_step == 0:
                opt.load_export(trainers.source)

        return trainers.start(call)[0]


@pytest.mark.parametrize("way", ["load_export", "wrap"])
@pytest.mark.parametrize("rounds, same", [(0, True), (2, True), (5, True), (3, False)])
def test_trainers_that_are_started_again_load_what_their_last_processes_did_not(
    start_cluster, rounds, same, way
):
    cluster = start_cluster(2)
    source = export_of(cluster)
    seats = Seats(cluster, 1, way)
    killed = seats.start(0, source if same else other_than(source))
    with first_planes(rounds):
        with pytest.raises(KeyboardInterrupt):
            seats.begin(killed).result(HANG_S)
    assert killed.optimizers[0].opt_step == 0
    killed.abandon()
    cluster.strike(0, 1)
    again = seats.start(0, source, "must")
    seats.begin(again).result(HANG_S)
    opt = again.optimizers[0]
    assert (opt.round, opt.opt_step) == (6 if same else rounds + 6, 8)
    expect_same_state(source, opt.export_state())
    again.close()
    # A third process finds the steps, and loads nothing.
    third = seats.start(0, source, "must")
    seats.begin(third).result(HANG_S)
    assert third.optimizers[0].round == opt.round
    third.close()


@pytest.mark.parametrize("way", ["load_export", "wrap"])
@pytest.mark.parametrize("slot, rounds", [(0, 1), (1, 4), (1, 5)])
def test_a_trainer_that_is_killed_while_state_is_loaded_is_waited_for(
    start_cluster, slot, rounds, way
):
    cluster = start_cluster(2)
    source = export_of(cluster)
    seats = Seats(cluster, 2, way)
    stays, killed = seats.start(1 - slot, source), seats.start(slot, source)
    killed.optimizers[0].user_state = {"position": 7}
    real, its_own = load.planes, killed.optimizers[0].param_groups[0]["params"][0]

    def planes(state, entries):
        for i, plane in enumerate(real(state, entries)):
            if i == rounds and entries[0].param is its_own:
                raise KeyboardInterrupt
            yield plane

    with mock.patch.object(load, "planes", planes):
        waits, ends = seats.begin(stays), seats.begin(killed)
        with pytest.raises(KeyboardInterrupt):
            ends.result(HANG_S)
        killed.abandon()
        again = seats.start(slot, source, "must")
        seats.begin(again).result(HANG_S)
        waits.result(HANG_S)
    assert again.optimizers[0].user_state == {"position": 7}
    for trainers in (stays, again):
        assert (trainers.optimizers[0].round, trainers.optimizers[0].opt_step) == (6, 8)
        expect_same_state(source, trainers.optimizers[0].export_state())
    for done in [t.start(lambda opt: opt.close())[0] for t in (stays, again)]:
        done.result(HANG_S)


def test_state_on_nvme_takes_every_bit_and_keeps_it(start_cluster):
    """75 extents of 96 KiB of state, with room for 10 of them in memory."""
    cluster = start_cluster(1, BALLAST_STORAGE_DRAM_BUDGET="1MiB")
    values = {"half": torch.bfloat16, "whole": torch.float32}
    params = [(n, nn.Parameter(torch.ones(300_000, dtype=d))) for n, d in values.items()]
    trainers = Trainers(
        cluster, [params], durability="process", device="nvme", tile_elements=4096,
        extent_elements=8192, reconnect_timeout=HANG_S / 2,
    )  # fmt: skip
    opt = trainers.optimizers[0]
    opt.attach()
    source = opt.export_state()
    generator = torch.Generator().manual_seed(4)
    for i, state in source["state"].items():
        state["step"] = torch.tensor(3.0 + i)
        for key in ARRAYS:
            state[key] = torch.randn(300_000, generator=generator)
    for strike in (False, True):
        opt.load_export(source)
        if strike:
            cluster.strike(0)
        expect_same_state(source, opt.export_state())
        source["state"][0]["exp_avg"].add_(1)
    trainers.close()
