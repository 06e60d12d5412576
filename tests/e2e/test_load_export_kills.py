"""Servers and trainers killed while optimizer state is loaded: it arrives as a whole, or not."""

from __future__ import annotations

import copy
import random
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

import ballast.torch as bt
from ballast.torch import load
from e2e.cluster import HANG_S, Trainers, fresh_job, wait_for
from e2e.mixed_net import MIXED, Gradients, Net, ballast_steps, expect_same_state


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
    """Trainers of a durable job, started one by one; they load `source` if it is not loaded yet."""

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
