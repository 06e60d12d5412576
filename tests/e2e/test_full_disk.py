"""A server on a disk that other files have filled, and on one that hangs.

Comes from: pytest, where loop devices can be mounted. Goes to: ballastd, ballastctl.
"""

from __future__ import annotations

import concurrent.futures
import signal
import subprocess
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from e2e.ballastctl import try_ctl
from e2e.cluster import Cluster, Trainers, fresh_job, run_small_job, wait_for

UNHEALTHY = 6  # ballastctl's exit code


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[None]:
    """An ext4 of its own at `path`: unlike others it hands out the rest when asked for more."""
    image = path.with_suffix(".ext4")
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    commands = (
        ["mkfs.ext4", "-q", "-m", "0", "-b", "4096", str(image)],
        ["mount", "-o", "loop", str(image), str(path)],
    )
    for command in commands:
        try:
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"{command[0]} does not work here: {error}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def end(cluster: Cluster, signum: int = signal.SIGKILL) -> None:
    cluster.kill(0, signum)
    cluster.exit_code(0)


def fill(disk: Path) -> None:
    """Until not a page is free."""
    with (disk / "other").open("wb", buffering=0) as other:
        for size in (1 << 20, 4096):
            try:
                while True:
                    other.write(bytes(size))
            except OSError:
                continue


def test_a_full_disk_keeps_neither_servers_nor_trainers_from_coming_back(start_cluster, tmp_path):
    cluster, name = start_cluster(1), fresh_job()
    run_small_job(cluster)  # It serves.
    end(cluster)
    disk = tmp_path / "cluster-0" / "server-0"
    parameter = torch.nn.Parameter(torch.ones(1000))
    parameter.grad = torch.ones_like(parameter)
    again = dict(job=name, durability="power", resume="auto")
    with small_disk(disk, 96):
        cluster.restart(0)
        trainers = Trainers(cluster, [[parameter]], job=name, durability="power")
        trainers.step()
        wait_for((disk / "reserve").exists, "the reserve")
        # A closed store has returned its reserve; a killed one has not.
        for rounds, signum in enumerate((signal.SIGTERM, signal.SIGKILL), start=1):
            end(cluster, signum)
            fill(disk)
            cluster.restart(0)
            assert cluster.running() == [True]
            cluster.wait_until_serving()
            full = "its data disk is full"
            wait_for(lambda: full in try_ctl(cluster, "health").stdout, full)
            trainers.close()
            trainers = Trainers(cluster, [[parameter]], **again)  # A new epoch: it is written.
            trainers.each(lambda opt: opt.attach())
            assert trainers.step()["round"] == rounds + 1
            (disk / "other").unlink()
            wait_for(lambda: try_ctl(cluster, "health").returncode == 0, "health after the fault")
            trainers.close()
            trainers = Trainers(cluster, [[parameter]], **again)
            trainers.each(lambda opt: opt.attach())
            wait_for((disk / "reserve").exists, "the reserve, taken again")
        trainers.close()
        cluster.stop()


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """No write to `disk` ends; questions are answered as before."""
    done = subprocess.run(["fsfreeze", "--freeze", str(disk)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"fsfreeze does not work here: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(disk)], capture_output=True)


def test_a_disk_that_hangs_is_named_until_it_ends_its_calls(start_cluster, tmp_path):
    cluster = start_cluster(1)
    run_small_job(cluster)
    end(cluster)
    disk = tmp_path / "cluster-0" / "server-0"
    parameter = torch.nn.Parameter(torch.ones(1000))
    parameter.grad = torch.ones_like(parameter)
    with small_disk(disk, 96), concurrent.futures.ThreadPoolExecutor() as pool:
        cluster.restart(0)
        trainers = Trainers(cluster, [[parameter]], job=fresh_job(), durability="power")
        trainers.step()
        assert try_ctl(cluster, "health").returncode == 0
        with frozen(disk):
            step = pool.submit(trainers.step)
            wait_for(lambda: try_ctl(cluster, "health").returncode == UNHEALTHY, "the hang",
                     every_s=0.5)
            assert "its data disk hangs: a write or flush" in try_ctl(cluster, "health").stdout
            with pytest.raises(urllib.error.HTTPError) as unready:
                cluster.get(0, "/readyz")
            assert unready.value.code == 503
            assert "the data disk hangs" in unready.value.read().decode()
            metrics = cluster.get(0, "/metrics")
            waits = next(line for line in metrics.splitlines()
                         if line.startswith('ballast_disk_wait_seconds{directory="data"}'))
            assert float(waits.split()[1]) >= 10
            assert 'ballast_disk_answers{directory="data"} 1' in metrics
            wait_for(lambda: "the data disk hangs: " in cluster.log(0), "the log")
            assert not step.done()
        assert step.result()["round"] == 2
        wait_for(lambda: try_ctl(cluster, "health").returncode == 0, "the end of the hang")
        wait_for(lambda: "the data disk ends calls again" in cluster.log(0), "the log")
        assert cluster.get(0, "/readyz").strip() == "ok"
        trainers.close()
        cluster.stop()
