"""A job whose world goes 2 -> 1 -> 3 while it runs has the bits of torch on the same contributions.

Who contributes to a round is settled by the test: trainers close and join between rounds.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

import ballast
import ballast.torch as bt
from e2e.cluster import HANG_S, Cluster, fresh_job
from e2e.lockstep import Noise, initial_weights
from e2e.oracle import Oracle, differing_bits, scale, slot_order_sum

SHAPES = {"weight": (64, 40), "bias": (40,), "odd": (77, 3), "scalar": ()}
HYPER = {"lr": 1e-2, "weight_decay": 0.1}
ROUNDS = 30  # of each world


class ChangingWorld:
    """The present trainers, by slot, and the oracles, which step on their gradients."""

    def __init__(self, cluster: Cluster) -> None:
        self.options = {
            "endpoints": cluster.endpoints, "job": fresh_job(), "tile_elements": 64,
            "extent_elements": 128, "attach_timeout": HANG_S, "durability": "process",
            "variable_world": True, "resume": "auto",
        }  # fmt: skip
        self._initial = initial_weights(SHAPES, torch.float32)
        self._noise = Noise(SHAPES)
        self._pool = ThreadPoolExecutor(4)
        self.oracle = Oracle([{"params": list(self._initial.items()), **HYPER}])
        self.replicas: dict[int, dict[str, torch.nn.Parameter]] = {}
        self.optimizers: dict[int, bt.AdamW] = {}
        self.round = 0

    def join(self, slots: Iterable[int], world: int) -> None:
        """New trainers take these seats; who joins later begins with other weights."""
        for slot in slots:
            self.seat(slot, world)
        attached = [self.attach_later(slot) for slot in slots]
        assert [a.result(HANG_S) for a in attached] == [self.round > 0] * len(attached)

    def seat(self, slot: int, world: int) -> None:
        """A trainer before its request for a seat."""
        replica = {
            name: torch.nn.Parameter(w.clone() if self.round == 0 else torch.rand_like(w))
            for name, w in self._initial.items()
        }
        self.replicas[slot] = replica
        self.optimizers[slot] = bt.AdamW(
            replica.items(), **HYPER, rank=slot, world_size=world, **self.options
        )

    def attach_later(self, slot: int) -> Future[bool]:
        """It asks now; the answer comes when the others do."""
        return self._pool.submit(self.optimizers[slot].attach)

    def leave(self, slot: int) -> None:
        self.optimizers.pop(slot).close()
        del self.replicas[slot]

    def step(self) -> None:
        """One round of everybody, with a learning rate of its own."""
        slots = sorted(self.replicas)
        rate = HYPER["lr"] * (1.0 - self.round / 200)
        for optimizer in (*self.optimizers.values(), *self.oracle.optimizers):
            optimizer.param_groups[0]["lr"] = rate
        for slot in slots:
            for name, p in self.replicas[slot].items():
                p.grad = self._noise.of(self.round, slot, name)
        for future in [self._pool.submit(self.optimizers[slot].step) for slot in slots]:
            future.result(HANG_S)
        self.round += 1
        assert {o.round for o in self.optimizers.values()} == {self.round}
        sums = [
            slot_order_sum([self.replicas[slot][name].grad for slot in slots])
            for name in self.oracle.names
        ]
        self.oracle.step([total * scale(len(slots)) for total in sums])

    def check(self) -> None:
        """Every replica's weights, the masters and the moments, bit for bit; how many they are."""
        for name, master in zip(self.oracle.names, self.oracle.masters(), strict=True):
            for slot, replica in self.replicas.items():
                assert differing_bits(replica[name], master) == 0, (slot, name)
        for optimizer in self.optimizers.values():
            assert optimizer.world_size == len(self.optimizers)
            differing = self.oracle.differing_bits(optimizer.export_state())
            assert not any(differing.values()), differing

    def finish(self) -> None:
        self.check()
        list(self._pool.map(lambda optimizer: optimizer.close(), self.optimizers.values()))
        self._pool.shutdown()


@pytest.mark.parametrize("servers", [1, 2, 7])
def test_two_trainers_then_one_then_three(prompt_clusters, servers):
    world = ChangingWorld(prompt_clusters(servers))
    world.join([0, 1], world=2)
    for _ in range(ROUNDS):
        world.step()
    world.check()
    world.leave(1)
    for _ in range(ROUNDS):
        world.step()
    world.check()
    world.join([1, 2], world=3)
    for _ in range(ROUNDS):
        world.step()
    world.finish()
    assert world.round == 3 * ROUNDS


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_a_world_that_is_started_again_begins_as_a_whole(prompt_clusters, order):
    """Whoever asks first waits for the others, also when the job came to rest with one member."""
    world = ChangingWorld(prompt_clusters(2))
    world.join([0, 1, 2], world=3)
    world.step()
    for slot in [0, 1, 2]:
        world.leave(slot)
    attached = []
    for slot in order:
        assert not any(future.done() for future in attached)
        world.seat(slot, world=3)
        attached.append(world.attach_later(slot))
        time.sleep(0.5)
    assert [future.result(HANG_S) for future in attached] == [True] * 3
    assert [world.optimizers[slot].world_size for slot in order] == [3] * 3
    world.step()
    world.finish()


def test_the_first_trainer_may_leave_and_come_back(prompt_clusters):
    world = ChangingWorld(prompt_clusters(2))
    world.join([0, 1], world=2)
    world.step()
    world.leave(0)
    world.step()
    world.check()
    world.join([0], world=2)
    world.step()
    world.finish()


def test_a_trainer_without_variable_world_is_no_part_of_such_a_job(prompt_clusters):
    world = ChangingWorld(prompt_clusters(1))
    world.join([0, 1], world=2)
    world.step()
    options = {**world.options, "variable_world": False}
    p = torch.nn.Parameter(torch.zeros(8))
    other = bt.AdamW([("weight", p)], rank=1, world_size=2, **options)
    with pytest.raises(ballast.SpecMismatch, match="variable_world"):
        other.attach()
    world.step()
    world.finish()


def test_a_leaving_trainer_unheard_by_the_home_is_told_of_its_seat(start_cluster, capfd):
    cluster = start_cluster(2)
    world = ChangingWorld(cluster)
    world.join([0, 1], world=2)
    world.step()
    cluster.kill(0, signal.SIGSTOP)
    world.leave(1)
    cluster.kill(0, signal.SIGCONT)
    assert "left without an answer of server 0" in capfd.readouterr().err
    world.leave(0)
