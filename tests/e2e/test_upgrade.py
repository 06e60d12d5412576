"""An upgrade and its way back under trainers that train on, as docs/operations.md says; and the
files of one build in the other.

BALLAST_TEST_OLD_BALLASTD names the server to come from and to go back to, of the last release for
example. Without it both are the same build, and the tests see only that servers may be stopped in
this order, and that files are found again. Comes from: pytest. Goes to: ballastd.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from e2e.ballastctl import ctl, export, snapshots
from e2e.cluster import Cluster, Trainers, fresh_job
from e2e.exports import shared
from e2e.small_run import Run, assert_equal

WORLD, SERVERS = 2, 2


def test_servers_are_replaced_one_by_one_and_back(ballastd, tmp_path):
    old = Path(os.environ.get("BALLAST_TEST_OLD_BALLASTD", ballastd))
    cluster = Cluster(old, SERVERS, tmp_path, BALLAST_TIME_SCALE="10")
    try:
        cluster.wait_until_serving()
        replicas = [[torch.nn.Parameter(torch.ones(400) * (i + 1)) for i in range(3)]
                    for _ in range(WORLD)]  # fmt: skip
        alone = [torch.nn.Parameter(p.detach().clone()) for p in replicas[0]]
        adamw = torch.optim.AdamW(alone, lr=0.01, fused=True)
        trainers = Trainers(cluster, replicas, durability="process", lr=0.01)

        def two_rounds() -> None:
            for _ in range(2):
                for p in (p for group in (*replicas, alone) for p in group):
                    p.grad = 0.25 + 0.1 * p.detach()
                trainers.step()
                adamw.step()
                for p, want in zip(replicas[0], alone, strict=True):
                    assert torch.equal(p.detach(), want.detach())

        two_rounds()
        for binary in (ballastd, old):
            for server in range(SERVERS):
                cluster._servers._binary = binary
                cluster.kill(server, signal.SIGTERM)
                assert cluster.exit_code(server) == 0
                cluster.restart(server)
                assert Path(f"/proc/{cluster.pid(server)}/exe").resolve() == binary.resolve()
                two_rounds()
        trainers.close()
    finally:
        cluster.stop()


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_the_state_of_one_build_continues_in_the_other(ballastd, tmp_path, device):
    """Both ways: a job, its snapshot, a restore of that, a fork and an import of an export."""
    old = Path(os.environ.get("BALLAST_TEST_OLD_BALLASTD", ballastd))
    ways = {"up": (old, ballastd), "down": (ballastd, old)}
    if old == ballastd:
        del ways["down"]
    for name, (before, after) in ways.items():
        folder = tmp_path / name
        folder.mkdir()
        cluster = Cluster(before, SERVERS, folder, BALLAST_TIME_SCALE="10", **shared(folder))
        try:
            cluster.wait_until_serving()
            run = Run(cluster, fresh_job(), WORLD, device=device)
            run.step(2)
            snapshots(cluster, "create", run.trainers.job, "second")
            export(cluster, run.trainers.job, "--snapshot", "second", "--name", "out", "--state")
            second = run.state()
            run.step(1)
            third = run.state()
            run.close()
            cluster._servers._binary = cluster.binary = after
            cluster.strike(*range(SERVERS), signum=signal.SIGTERM)
            cluster.wait_until_serving()
            assert Path(f"/proc/{cluster.pid(0)}/exe").resolve() == after.resolve()
            job = run.trainers.job
            snapshots(cluster, "restore", job, "second", "--as", "restored")
            snapshots(cluster, "fork", job, "second", "--as", "forked")
            ctl(cluster, "import", "out", "--as", "imported")
            for again, state in (
                (job, third), ("restored", second), ("forked", second), ("imported", second),
            ):  # fmt: skip
                one = Run(cluster, again, WORLD, device=device, resume="must")
                assert_equal(one.state(), state)
                one.step(3 - one.round)
                assert_equal(one.state(), third)
                one.close()
        finally:
            cluster.stop()
