"""Health says what keeps a cluster from training: empty data directories, lists of peers that
differ, two processes with one id. Trainers wait for a directory that may be mounted yet."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import torch

from e2e.ballastctl import jobs, try_ctl
from e2e.cluster import Cluster, Trainers, fresh_job, wait_for

STEPS = 6


def problems(cluster: Cluster, server: int) -> list[str]:
    said = json.loads(try_ctl(cluster, "health", "-o", "json").stdout)
    return [p for row in said["servers"] if row["id"] == server for p in row["problems"]]


def wait_for_problem(cluster: Cluster, server: int, text: str) -> None:
    wait_for(lambda: any(text in p for p in problems(cluster, server)), f"a row with {text!r}")
    assert try_ctl(cluster, "health").returncode == 6


def replicas() -> list[list[torch.nn.Parameter]]:
    return [[torch.nn.Parameter(torch.ones(70_000))] for _ in range(2)]


def set_gradients(nets: list[list[torch.nn.Parameter]], round_: int) -> None:
    for slot, (p,) in enumerate(nets):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(round_ + 9 * slot))


def steps(trainers: Trainers, nets: list[list[torch.nn.Parameter]], rounds: range) -> None:
    for round_ in rounds:
        set_gradients(nets, round_)
        trainers.step()


def exchange(cluster: Cluster, server: int, away: Path, back: Path, data: Path) -> None:
    """Ends a server, and starts it on the directory `back` in place of its own."""
    cluster.kill(server, signal.SIGKILL)
    cluster.exit_code(server)
    data.rename(away)
    back.rename(data)
    cluster.restart(server)


def test_trainers_wait_for_the_directory_of_a_server_that_came_back_empty(start_cluster, tmp_path):
    cluster = start_cluster(2)
    # Small extents, so that both servers own some.
    options = dict(durability="power", tile_elements=16384, extent_elements=32768)
    undisturbed = replicas()
    other = Trainers(cluster, undisturbed, **options)
    steps(other, undisturbed, range(STEPS))
    other.close()

    nets, name = replicas(), fresh_job()
    trainers = Trainers(cluster, nets, job=name, **options)
    for server in (1, 0):
        done = range(0, 2) if server == 1 else range(3, 4)
        steps(trainers, nets, done)
        data, aside, empty = (
            tmp_path / "cluster-0" / f"server-{server}", tmp_path / "aside", tmp_path / "empty")
        empty.mkdir()
        exchange(cluster, server, aside, empty, data)
        lacks = f'server {server} lacks the files of job "{name}"'
        wait_for_problem(cluster, server, lacks)
        assert "ballast_damaged_jobs 2" in cluster.get(server, "/metrics")  # The other one rests.
        assert jobs(cluster)[name] == ("running" if server == 1 else "damaged")
        set_gradients(nets, done.stop)
        waiting = trainers.start(lambda opt: opt.step())
        assert not any(future.done() for future in waiting)
        assert cluster.log(server).count(lacks) == 1  # Said once, however often it is asked.
        exchange(cluster, server, empty, aside, data)
        empty.rename(tmp_path / f"was-empty-{server}")
        for future in waiting:
            future.result(120)
    steps(trainers, nets, range(5, STEPS))
    trainers.close()
    assert torch.equal(nets[0][0], undisturbed[0][0])
    wait_for(lambda: try_ctl(cluster, "health").returncode == 0, "a healthy cluster")


@contextlib.contextmanager
def intruder(cluster: Cluster, folder: Path, server: int, peers: list[int]) -> Iterator[None]:
    """A server with that id on another port, whose peers file has `peers`."""
    folder.mkdir()
    known = dict(enumerate(cluster.endpoints))
    lines = [{"id": i, "address": known.get(i, "127.0.0.1:1")} for i in peers]
    (folder / "peers.json").write_text(json.dumps({"peers": lines}))
    command = [
        str(cluster.binary), "--listen=127.0.0.1:0", f"--id={server}",
        f"--peers-file={folder / 'peers.json'}", f"--data-dir={folder / 'data'}",
        "--set=admin.enabled=false",
    ]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def test_servers_that_do_not_fit_together_are_named_while_they_are_there(start_cluster, tmp_path):
    cluster = start_cluster(2)
    with intruder(cluster, tmp_path / "grown", 2, [0, 1, 2]):
        wait_for_problem(
            cluster, 0, "cluster.peers of server 2 has 0, 1, 2, and that of server 0 has 0, 1")
    with intruder(cluster, tmp_path / "twin", 1, [0, 1]):
        wait_for_problem(cluster, 0, "two processes are server 1")
        assert "ballast_cluster_problems" in cluster.get(0, "/metrics")
    assert "two processes are server 1" in cluster.log(0)
    wait_for(lambda: try_ctl(cluster, "health").returncode == 0, "a healthy cluster again")
