"""A server starts, and its job changes trainers, on a disk that other files have filled."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from e2e.cluster import Cluster, Trainers, fresh_job, run_small_job, wait_for


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[None]:
    """An ext4 of its own at `path`: unlike others it hands out what is left when asked for more."""
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
        # A store that was closed has given back what it had set aside; one that was killed has not.
        for rounds, signum in enumerate((signal.SIGTERM, signal.SIGKILL), start=1):
            end(cluster, signum)
            fill(disk)
            cluster.restart(0)
            assert cluster.running() == [True]
            trainers.close()
            trainers = Trainers(cluster, [[parameter]], **again)  # A new epoch: it is written.
            trainers.each(lambda opt: opt.attach())
            assert trainers.step()["round"] == rounds + 1
            (disk / "other").unlink()
            trainers.close()
            trainers = Trainers(cluster, [[parameter]], **again)
            trainers.each(lambda opt: opt.attach())
            wait_for((disk / "reserve").exists, "the reserve, taken again")
        trainers.close()
        cluster.stop()
