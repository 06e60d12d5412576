"""Gradients already equal on all trainers: one of them pushes, with torch's bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import ballast
import ballast.torch as bt
from e2e.ballastctl import snapshots
from e2e.cluster import HANG_S, Cluster, Trainers, fresh_job, wait_for
from e2e.lockstep import Noise, initial_weights
from e2e.oracle import Oracle, differing_bits
from e2e.reduced_trainer import EXTENTS, HYPER, SHAPES

SCRIPT = Path(__file__).with_name("reduced_trainer.py")
# Several processes that import torch take long on a busy machine.
DDP_S = 4 * HANG_S
LEASE = {"BALLAST_TIMING_LEASE": "3s"}


def started(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, arguments)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def in_ddp(cluster: Cluster, world: int, folder: Path, gradients: str) -> tuple[int, list[str]]:
    """A whole run; the bytes of gradients and weights that all ranks push, and the output of
    each."""
    job = fresh_job("ddp")
    ranks = [
        started("ddp", ",".join(cluster.endpoints), job, rank, world, folder, gradients)
        for rank in range(world)
    ]
    said = [rank.communicate(timeout=DDP_S) for rank in ranks]
    errors = [error for _, error in said]
    assert [rank.returncode for rank in ranks] == [0] * world, "".join(errors)
    results = [json.loads(out) for out, _ in said]
    assert [result["bits"] for result in results] == [0] * world
    return sum(result["up"] for result in results), errors


def test_in_ddp_one_trainer_pushes_for_all_and_the_bits_are_those_of_torch(clusters, tmp_path):
    cluster = clusters(2)
    alone, _ = in_ddp(cluster, 1, tmp_path, "auto")
    assert alone > 0
    for world, gradients in ((2, "auto"), (3, "reduced"), (4, "auto")):
        pushed, said = in_ddp(cluster, world, tmp_path, gradients)
        assert alone <= pushed <= 1.05 * alone, (world, gradients)
        told = [error.count("one of them pushes") for error in said]
        assert told == [gradients == "auto"] + [0] * (world - 1)
    # The servers' average of equal gradients has the same bits, and costs both pushes.
    averaged, said = in_ddp(cluster, 2, tmp_path, "local")
    assert averaged > 1.9 * alone
    assert all(error.count("the model is in DDP") == 1 for error in said)


def test_the_servers_count_what_one_trainer_pushes(start_cluster):
    cluster = start_cluster(1)
    world = EqualWorld(cluster, variable_world=False)
    world.join([0, 1, 2], world=3)
    for _ in range(3):
        world.step()
    parameters = sum(p.numel() for p in world.replicas[0].values())
    pushed = cluster.pushed_bytes(0, world.options["job"])
    assert pushed == 4 * parameters * (1 + 3), "initial weights, and three rounds of one trainer"
    world.finish()


class EqualWorld:
    """Trainers by slot, all with the same gradients, and torch, which steps on them once."""

    def __init__(self, cluster: Cluster, job: str = "", **options: object) -> None:
        self.options = {
            "endpoints": cluster.endpoints, "job": job or fresh_job(), "attach_timeout": HANG_S,
            "durability": "process", "variable_world": True, "resume": "auto",
            "gradients": "reduced", **EXTENTS, **options,
        }  # fmt: skip
        self._initial = initial_weights(SHAPES, torch.float32)
        self._noise = Noise(SHAPES)
        self.pool = ThreadPoolExecutor(4)
        self.oracle = Oracle([{"params": list(self._initial.items()), **HYPER}])
        self.replicas: dict[int, dict[str, torch.nn.Parameter]] = {}
        self.optimizers: dict[int, bt.AdamW] = {}
        self.round = 0

    def attach(self, slots: Iterable[int], world: int) -> list[Future[bool]]:
        for slot in slots:
            self.replicas[slot] = {
                name: torch.nn.Parameter(w.clone() if self.round == 0 else torch.rand_like(w))
                for name, w in self._initial.items()
            }
            self.optimizers[slot] = bt.AdamW(
                self.replicas[slot].items(), **HYPER, rank=slot, world_size=world, **self.options
            )
        return [self.pool.submit(self.optimizers[slot].attach) for slot in slots]

    def join(self, slots: Iterable[int], world: int) -> None:
        for attached in self.attach(slots, world):
            attached.result(HANG_S)

    def leave(self, slot: int) -> None:
        self.optimizers.pop(slot).close()
        del self.replicas[slot]

    def begin(self) -> list[Future]:
        for replica in self.replicas.values():
            for name, p in replica.items():
                p.grad = self._noise.of(self.round, 0, name)
        return [self.pool.submit(opt.step) for opt in self.optimizers.values()]

    def end(self, futures: list[Future]) -> None:
        for future in futures:
            future.result(HANG_S)
        self.step_torch()
        assert {opt.round for opt in self.optimizers.values()} == {self.round}

    def step_torch(self) -> None:
        self.oracle.step([self._noise.of(self.round, 0, name) for name in self.oracle.names])
        self.round += 1

    def step(self) -> None:
        self.end(self.begin())

    def check(self) -> None:
        for name, master in zip(self.oracle.names, self.oracle.masters(), strict=True):
            for slot, replica in self.replicas.items():
                assert differing_bits(replica[name], master) == 0, (slot, name)
        for opt in self.optimizers.values():
            differing = self.oracle.differing_bits(opt.export_state())
            assert not any(differing.values()), differing

    def finish(self) -> None:
        self.check()
        list(self.pool.map(lambda opt: opt.close(), self.optimizers.values()))
        self.pool.shutdown()


def test_a_world_that_grows_and_loses_its_lowest_slot_keeps_the_bits(prompt_clusters):
    world = EqualWorld(prompt_clusters(2))
    world.join([0, 1], world=2)
    for _ in range(3):
        world.step()
    world.leave(0)
    for _ in range(3):
        world.step()
    assert world.optimizers[1].last_report["bytes_up"] > 0, "slot 1 pushes now"
    world.check()
    world.join([0, 2], world=3)
    for _ in range(3):
        world.step()
    assert world.optimizers[1].last_report["bytes_up"] == 0, "slot 0 again"
    world.finish()


def test_the_next_slot_pushes_the_round_in_which_the_lowest_is_killed(start_cluster):
    """Slots 1 and 2 have begun the round and owe nothing; slot 0 dies before it pushes."""
    cluster = start_cluster(2, **LEASE)
    world = EqualWorld(cluster)
    job = world.options["job"]
    victim = started("hold", ",".join(cluster.endpoints), job, 0, 3, 3)
    try:
        world.join([1, 2], world=3)
        for _ in range(3):
            world.step()
        assert victim.stdout.readline() == "ready\n", victim.communicate()[1]
        under_way = world.begin()

        def begun() -> bool:
            slots = cluster.jobs()[job]["slots"]
            return [slot["state"] for slot in slots] == ["attached", "done", "done"]

        wait_for(begun, "slots 1 and 2 to begin")
        victim.send_signal(signal.SIGKILL)
        world.end(under_way)
        assert world.optimizers[1].last_report["bytes_up"] > 0
        assert world.optimizers[2].last_report["bytes_up"] == 0
    finally:
        victim.kill()
        victim.communicate()
    world.step()
    world.finish()


@pytest.mark.parametrize("servers", [(0,), (0, 1)])
def test_servers_that_die_in_a_round_take_it_from_one_trainer_again(start_cluster, servers):
    cluster = start_cluster(2)
    world = EqualWorld(cluster, variable_world=False)
    world.join([0, 1, 2], world=3)
    for _ in range(4):
        world.step()
        under_way = world.begin()
        cluster.strike(*servers)
        world.end(under_way)
    world.finish()


def test_a_snapshot_continues_with_another_world_and_one_that_pushes(start_cluster, tmp_path):
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path / "snapshots"))
    world = EqualWorld(cluster, variable_world=False)
    world.join([0, 1], world=2)
    for _ in range(2):
        world.step()
    world.optimizers[1].snapshot("two")
    world.leave(0), world.leave(1)
    fork = fresh_job("fork")
    snapshots(cluster, "restore", world.options["job"], "two", "--as", fork, "--world", "3")
    world.options["job"] = fork
    world.join([0, 1, 2], world=3)
    for _ in range(2):
        world.step()
    assert world.optimizers[2].last_report["bytes_up"] == 0
    world.finish()


# --- Refusals ------------------------------------------------------------------------------------


def replicas(world: int) -> list[list[tuple[str, torch.nn.Parameter]]]:
    return [
        [(name, torch.nn.Parameter(torch.ones(300))) for name in ("first", "second")]
        for _ in range(world)
    ]


def test_gradients_that_differ_are_refused_with_slots_and_tensor(clusters):
    models = replicas(3)
    trainers = Trainers(clusters(2), models, gradients="reduced")
    for slot, model in enumerate(models):
        for name, p in model:
            p.grad = torch.full_like(p, 2.0 if (slot, name) == (2, "second") else 1.0)
    errors = trainers.errors()
    assert all(isinstance(error, ballast.GradientMismatch) for error in errors), errors
    for error in errors:
        found = [f"slots {a} and 2 in round 1 (tensor \"second\")" in str(error) for a in (0, 1)]
        assert any(found), error
        assert "Nothing of round 1 was applied" in str(error)
    for model in models:
        for _, p in model:
            assert torch.equal(p.detach(), torch.ones(300))


def test_a_difference_that_comes_later_is_found_in_the_hundredth_round(clusters):
    models = replicas(2)
    trainers = Trainers(clusters(1), models, gradients="reduced")
    for round in range(1, 101):
        for slot, model in enumerate(models):
            for _, p in model:
                p.grad = torch.full_like(p, 1.0 + slot * (round > 10))
        if round < 100:
            trainers.step()
    errors = trainers.errors()
    assert all(isinstance(error, ballast.GradientMismatch) for error in errors), errors


def test_trainers_that_say_different_things_are_no_job(clusters):
    cluster, job = clusters(1), fresh_job()
    first, second = (
        Trainers(cluster, {slot: replicas(1)[0]}, job=job, world=2, gradients=gradients)
        for slot, gradients in enumerate(("reduced", "local"))
    )
    waiting = first.start(lambda opt: opt.attach())
    cluster.wait_until_slot_waits(job, 0)
    with pytest.raises(ballast.SpecMismatch, match="gradients is local, the job has reduced"):
        second.optimizers[0].attach()
    with pytest.raises(ballast.SpecMismatch, match="gradients"):
        waiting[0].result(HANG_S)


def test_a_round_that_is_skipped_is_skipped_by_the_one_that_pushes(clusters):
    models = replicas(2)
    trainers = Trainers(clusters(2), models, gradients="reduced", max_grad_norm=1.0)
    for model in models:
        for _, p in model:
            p.grad = torch.full_like(p, float("nan"))
    assert trainers.step()["applied"] is False
    for model in models:
        for _, p in model:
            p.grad = torch.full_like(p, 0.5)
    report = trainers.step()
    assert report["applied"] is True
    assert report["grad_norm"] == pytest.approx(0.5 * 600**0.5)
    trainers.close()
