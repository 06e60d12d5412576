"""Servers of a durable job die and come back, and the bits are those of an undisturbed torch.

Instants are chosen by the bytes that a trainer has moved, from a printed seed, so that they fall
into any part of a round. How long the rounds were paused is printed (pytest -rP), never asserted.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import ballast
import ballast.torch as bt
from e2e import matrix_trainer
from e2e.cluster import HANG_S, Cluster, Trainers, error_of_step, fresh_job, wait_for
from e2e.lockstep import Lockstep, Noise, numel
from e2e.oracle import differing_bits

SHAPES = {"embedding": (500, 200), "weight": (256, 128), "bias": (256,), "odd": (111, 133)}
GROUP = {"params": SHAPES, "lr": 1e-3, "weight_decay": 0.1}
TILES = {"tile_elements": 4096, "extent_elements": 16384}
# What both trainers together push in a round, or receive, is twice this.
ROUND_BYTES = 4 * sum(map(numel, SHAPES.values()))
ROUNDS = 40
# A silent server is noticed soon.
NERVOUS = {"BALLAST_TIMING_HEARTBEAT_INTERVAL": "100ms", "BALLAST_TIMING_REPORT_AFTER": "500ms"}


class Training:
    """A job of two trainers whose rounds run in the background, with the oracles alongside them.

    As a context, it sees all rounds through, or breaks them off when the test has failed.
    """

    def __init__(self, cluster: Cluster, durability: str, reconnects: int) -> None:
        """reconnects: the fewest that there are to be."""
        self._run = Lockstep(
            cluster, 2, [GROUP], durability=durability, reconnect_timeout=HANG_S / 2, **TILES
        )
        self._reconnects = reconnects
        self._noise = Noise(SHAPES)
        self._reports: list[dict] = []
        self._pool = ThreadPoolExecutor(1)
        self._step()
        self._future: Future = self._pool.submit(self._steps)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._run.trainers.abandon()

    def _step(self) -> None:
        self._reports.append(self._run.round(self._noise.at(len(self._reports))))

    def _steps(self) -> None:
        while len(self._reports) < ROUNDS:
            self._step()

    def moved_bytes(self) -> int:
        """Payload that trainer 0 has pushed and received, in this process of several threads."""
        counters = self._run.trainers.optimizers[0].counters
        return counters["payload_up_bytes"] + counters["payload_down_bytes"]

    def await_bytes(self, count: int) -> None:
        """Until trainer 0 has moved this many bytes, or all rounds are over."""

        def moved() -> bool:
            return self.moved_bytes() >= count or self._future.done()

        wait_for(moved, f"{count} bytes to be moved", every_s=0.0005)
        assert not self._future.done(), self._future.exception()

    def _finish(self) -> None:
        self._future.result(HANG_S)
        self._pool.shutdown()
        paused = [r["paused_ms"] for r in self._reports if r["reconnects"]]
        print(f"paused: {', '.join(f'{ms:.0f}' for ms in paused)} ms")
        assert sum(r["reconnects"] for r in self._reports) >= self._reconnects
        assert (self._reports[-1]["round"], self._reports[-1]["opt_step"]) == (ROUNDS, ROUNDS)
        self._run.finish()


def instants(seed: int, count: int) -> list[int]:
    """Bytes after which something happens, in random rounds and at random places in them.

    More than a round lies between two of them, so the first one's damage is mended by then.
    """
    generator = random.Random(seed)
    rounds = sorted(generator.sample(range(2, ROUNDS - 5, 2), count))
    return [int((r + generator.random()) * 2 * ROUND_BYTES) for r in rounds]


@pytest.mark.parametrize("durability, seed", [("power", 1), ("power", 2), ("process", 3)])
def test_servers_killed_at_random_instants(start_cluster, durability, seed):
    cluster = start_cluster(2)
    victims = random.Random(seed)
    with Training(cluster, durability, reconnects=5) as training:
        for at in instants(seed, 5):
            training.await_bytes(at)
            cluster.strike(victims.randrange(2))


@pytest.mark.parametrize("durability", ["power", "process"])
def test_both_servers_killed_at_once(start_cluster, durability):
    cluster = start_cluster(2)
    with Training(cluster, durability, reconnects=4) as training:
        for at in instants(4, 2):
            training.await_bytes(at)
            cluster.strike(0, 1)


def test_servers_stopped_in_order_and_started_again(start_cluster):
    cluster = start_cluster(2)
    with Training(cluster, "power", reconnects=2) as training:
        for server, at in enumerate(instants(5, 2)):
            training.await_bytes(at)
            cluster.kill(server, signal.SIGTERM)
            assert cluster.exit_code(server) == 0
            cluster.restart(server)


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
def test_a_server_that_hangs_is_waited_for(start_cluster, capsys, then):
    cluster = start_cluster(2, **NERVOUS)
    told = ""

    def said(text: str) -> Callable[[], bool]:
        def look() -> bool:
            nonlocal told
            told += capsys.readouterr().err
            return text in told

        return look

    with Training(cluster, "power", reconnects=2) as training:
        for server, at in enumerate(instants(6, 2)):
            training.await_bytes(at)
            cluster.kill(server, signal.SIGSTOP)
            wait_for(said(f"server {server} ({cluster.endpoints[server]}) is away"), "the pause")
            cluster.kill(server, then)
            if then == signal.SIGKILL:
                cluster.restart(server)
            wait_for(said(f"server {server} is back after"), "its end")


@pytest.mark.parametrize("server", [0, 1])
def test_a_server_killed_while_the_weights_are_uploaded(start_cluster, server):
    cluster = start_cluster(2)
    shapes = {"wide": (2000, 2000), "odd": (77, 3)}
    options = {"tile_elements": 16384, "extent_elements": 65536, "reconnect_timeout": HANG_S / 2}
    run = Lockstep(cluster, 2, [{"params": shapes}], durability="power", **options)
    noise, job = Noise(shapes), run.trainers.job
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run.round, noise.at(0))
        try:
            wait_for(lambda: cluster.pushed_bytes(server, job) > 0, "the upload", every_s=0.0)
            print(f"killed with {cluster.pushed_bytes(server, job)} bytes of {2 * 2000 * 2000}")
            cluster.strike(server)
            assert first.result(HANG_S)["round"] == 1
            run.round(noise.at(1))
            run.finish()
        finally:
            run.trainers.abandon()


@contextlib.contextmanager
def processes(folder: Path, ballastd: Path, rounds: int) -> Iterator[subprocess.Popen]:
    """ballast-run with two servers and two trainer processes; gone at the end."""
    command = [sys.executable, "-m", "ballast.run", "--servers", "2", "--nproc", "2", "--data-dir",
               folder, "--server-binary", ballastd, matrix_trainer.__file__, folder, str(rounds)]
    env = {**matrix_trainer.environment(), "BALLAST_DURABILITY": "power"}
    child = subprocess.Popen(
        list(map(str, command)), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        child.terminate()
        child.communicate()


def pid_of(folder: Path, server: int) -> int:
    """The process of a server; 0 while it is being started."""
    try:
        return json.loads((folder / "run" / f"ready-{server}.json").read_text())["pid"]
    except FileNotFoundError:
        return 0


def round_of(folder: Path) -> int:
    """The highest round that a server tells; 0 when none does."""
    rounds = [0]
    for ready in folder.glob("run/ready-*.json"):
        with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
            url = f"http://{json.loads(ready.read_text())['admin']}/statusz?format=json"
            with urllib.request.urlopen(url, timeout=HANG_S) as reply:
                (status,) = json.load(reply)["servers"]
            rounds += [job["round"] for job in status["jobs"]]
    return max(rounds)


def test_processes_of_ballast_run_survive_kills_of_its_servers(ballastd, tmp_path):
    generator = random.Random(7)
    with processes(tmp_path, ballastd, ROUNDS) as child:
        for at in sorted(generator.sample(range(3, ROUNDS - 5), 4)):
            wait_for(lambda: round_of(tmp_path) >= at or child.poll() is not None, f"round {at}")
            assert child.poll() is None, child.communicate()
            server = generator.randrange(2)
            pid = pid_of(tmp_path, server)
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: pid_of(tmp_path, server) not in (0, pid), "the next process")
        _, err = child.communicate(timeout=HANG_S)
    assert child.returncode == 0, err
    assert err.count("ended by SIGKILL; starting it again") == 4
    assert "[0] ballast: server" in err and "[1] ballast: server" not in err
    oracle = matrix_trainer.reference(world=2, steps=ROUNDS)
    for rank in range(2):
        result = torch.load(tmp_path / f"rank{rank}.pt")
        for name, master in zip(oracle.names, oracle.masters(), strict=True):
            assert differing_bits(result["weights"][name], master) == 0, (rank, name)
        differing = oracle.differing_bits(result["state"])
        assert not any(differing.values()), differing


@contextlib.contextmanager
def server_without_data(ballastd: Path, folder: Path) -> Iterator[str]:
    """The address of a lone server without storage.data_dir."""
    ready = folder / "ready.json"
    child = subprocess.Popen(
        [ballastd, "--listen=127.0.0.1:0", f"--ready-file={ready}"], stderr=subprocess.DEVNULL
    )
    try:
        wait_for(ready.exists, "the server")
        yield json.loads(ready.read_text())["address"]
    finally:
        child.terminate()
        child.wait()


@pytest.mark.parametrize("durability", ["power", "process"])
def test_durability_without_a_data_directory_is_refused(ballastd, tmp_path, durability):
    with server_without_data(ballastd, tmp_path) as endpoint:
        p = torch.nn.Parameter(torch.ones(8))
        p.grad = torch.ones(8)
        opt = bt.AdamW([p], endpoints=endpoint, job=fresh_job(), durability=durability)
        with pytest.raises(ballast.BadSpec, match=r"server 0 has no storage\.data_dir; set one"):
            opt.step()
        other = bt.AdamW([p], endpoints=endpoint, job=fresh_job(), durability="none")
        other.step()
        other.close()


def test_without_durability_a_killed_server_ends_the_job(start_cluster):
    cluster = start_cluster(2)
    replicas = [[torch.nn.Parameter(torch.ones(1000))] for _ in range(2)]
    for (p,) in replicas:
        p.grad = torch.ones_like(p)
    trainers = Trainers(cluster, replicas, durability="none")
    trainers.step()
    cluster.kill(1, signal.SIGKILL)
    for error in trainers.errors():
        assert isinstance(error, ballast.ServerLost), error
        assert error.server == 1
    cluster.restart(1)
    for opt in trainers.optimizers:
        assert isinstance(error_of_step(opt), ballast.ServerLost)


@pytest.mark.parametrize("durability", ["none", "power"])
def test_an_attach_to_a_new_job_waits_for_a_server_that_is_killed_meanwhile(
    start_cluster, durability
):
    cluster = start_cluster(2)
    wait_for(lambda: "peer is reachable" in cluster.log(0), "the servers to find each other")
    trainers = []

    def begin(slot: int, job: str):
        p = torch.nn.Parameter(torch.ones(1000))
        p.grad = torch.ones(1000)
        one = Trainers(cluster, {slot: [p]}, job=job, world=2, durability=durability)
        trainers.append(one)
        return one.start(lambda opt: opt.step())[0]

    job = fresh_job()
    first = begin(0, job)
    wait_for(lambda: job in cluster.jobs(0), "the attach of the first trainer")
    cluster.kill(1, signal.SIGKILL)
    wait_for(lambda: "peer lost" in cluster.log(0), "the home to notice")
    second = begin(1, job)
    cluster.restart(1)
    for future in (first, second):
        future.result(60)
    for one in trainers:
        assert one.optimizers[0].last_report["round"] == 1
        one.close()


def test_a_server_that_stays_away_too_long_is_named(start_cluster):
    cluster = start_cluster(2)
    replicas = [[torch.nn.Parameter(torch.ones(1000))] for _ in range(2)]
    for (p,) in replicas:
        p.grad = torch.ones_like(p)
    trainers = Trainers(cluster, replicas, durability="power", reconnect_timeout=0.5)
    trainers.step()
    cluster.kill(1, signal.SIGKILL)
    for error in trainers.errors():
        assert isinstance(error, ballast.ServerLost), error
        assert error.server == 1
        assert "has been away" in str(error) and "reconnect_timeout" in str(error)


def test_a_server_that_was_down_when_its_job_ended_lets_it_rest(start_cluster):
    cluster = start_cluster(2)
    p = torch.nn.Parameter(torch.ones(1000))
    p.grad = torch.ones(1000)
    trainers = Trainers(cluster, [[p]], durability="power", **TILES)
    trainers.step()
    cluster.kill(1, signal.SIGKILL)
    trainers.close()
    cluster.restart(1)

    wait_for(lambda: "has missed its end" in cluster.log(1), "server 1 to say so")
    wait_for(lambda: not cluster.jobs(1), "the job to go from memory")
    again = Trainers(cluster, [[p]], job=trainers.job, resume="must", durability="power", **TILES)
    again.each(lambda opt: opt.attach())
    assert again.step()["round"] == 2
    assert list(cluster.jobs(1)) == [trainers.job]
    again.close()


@contextlib.contextmanager
def gone(cluster, server: int):
    """Kills it, and starts it again at the end."""
    other = 1 - server
    wait_for(lambda: "peer is reachable" in cluster.log(other), "the servers to find each other")
    cluster.kill(server, signal.SIGKILL)
    wait_for(lambda: "peer lost" in cluster.log(other), "the other to notice")
    yield
    cluster.restart(server)


@pytest.mark.parametrize(("away", "kept"), [(0, gone), (1, gone), (1, Cluster.starting)])
def test_an_attach_says_which_server_it_waits_for(start_cluster, capsys, away, kept):
    cluster = start_cluster(2)
    p = torch.nn.Parameter(torch.zeros(300))
    said = []

    def told(text: str) -> bool:
        said.extend(capsys.readouterr().err.splitlines())
        return any(text in line for line in said)

    with kept(cluster, away):
        trainers = Trainers(cluster, [[p]], durability="process")
        (attaching,) = trainers.start(lambda opt: opt.attach())
        word = f"server {away} ({cluster.endpoints[away]}) is away ("
        wait_for(lambda: told(word), f"the word; {said}")
        assert any(line.endswith("; attaching waits") for line in said), said
    attaching.result(HANG_S)
    assert told(f"server {away} is back after "), said
    p.grad = torch.ones(300)
    trainers.step()
    trainers.close()
