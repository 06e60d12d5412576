"""Optimizer state into a running job and out again: torch, then Ballast, then torch, 0 bits differ.

The reference is one torch.optim.AdamW that takes all steps; see oracle.py for the root it takes.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from e2e.cluster import HANG_S, Trainers, error_of
from e2e.mixed_net import (
    MIXED,
    Gradients,
    Net,
    ballast_steps,
    expect_same_nets,
    expect_same_state,
    torch_adamw,
    torch_steps,
)
from e2e.oracle import ARRAYS


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
    """Trainers whose optimizers are wrapped torch ones after some steps."""
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
