"""ballastctl jobs: durable jobs listed, shown and deleted while they run and when they rest."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

import ballast
from e2e.cluster import HANG_S, Cluster, Trainers, fresh_job, wait_for


class Ctl:
    """The operator's program, asking one server of a cluster."""

    def __init__(self, ballastd: Path, cluster: Cluster, server: int = 0) -> None:
        self._command = [ballastd.parent / "ballastctl", "jobs"]
        self._endpoint = ["--endpoint", cluster.endpoints[server]]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([*self._command, *arguments, *self._endpoint], capture_output=True,
                              text=True, timeout=HANG_S)  # fmt: skip

    def jobs(self) -> dict[str, dict]:
        done = self("list", "-o", "json")
        assert done.returncode == 0, done.stderr
        return {job["name"]: job for job in json.loads(done.stdout)["jobs"]}


def start(cluster: Cluster, job: str) -> Trainers:
    replicas = [[torch.nn.Parameter(torch.ones(1000))] for _ in range(2)]
    for (p,) in replicas:
        p.grad = torch.ones_like(p)
    trainers = Trainers(cluster, replicas, job=job, durability="power")
    trainers.step()
    return trainers


def files(folder: Path) -> list[str]:
    return [p.name for p in folder.glob("cluster-0/server-*/**/*") if p.name.startswith("log-")]


@pytest.mark.parametrize("server", [0, 1])
def test_a_finished_job_rests_until_it_is_deleted(start_cluster, ballastd, tmp_path, server):
    cluster = start_cluster(2)
    ctl, name = Ctl(ballastd, cluster, server), fresh_job()
    wait_for(lambda: ctl("list").returncode == 0, "the servers")  # They have just found each other.
    assert ctl("list").stdout == "no durable jobs\n"
    start(cluster, name).close()
    job = ctl.jobs()[name]
    assert (job["state"], job["world"], job["parameters"], job["open_streams"]) == (
        "resting", 2, 1000, 0)  # fmt: skip
    assert job["round"] == 2, "the next, after one step"
    assert name in ctl("show", name).stdout and files(tmp_path)
    done = ctl("delete", name)
    assert (done.returncode, done.stdout) == (0, f"deleted {name}\n"), done.stderr
    assert not ctl.jobs() and not files(tmp_path)
    for action in ("show", "delete"):
        missing = ctl(action, name)
        assert missing.returncode == 4 and name in missing.stderr
    start(cluster, name).close()  # The name is free again.


def test_a_running_job_is_deleted_by_force_only(start_cluster, ballastd, tmp_path):
    cluster = start_cluster(2)
    ctl, name = Ctl(ballastd, cluster), fresh_job()
    trainers = start(cluster, name)
    assert ctl.jobs()[name]["open_streams"] == 2
    refused = ctl("delete", name)
    assert refused.returncode == 5
    assert "2 of 2 trainers" in refused.stderr and "--force" in refused.stderr
    trainers.step()
    assert ctl("delete", name, "--force").returncode == 0
    for error in trainers.errors():
        assert isinstance(error, ballast.JobFailed), error
        assert "was deleted by an operator" in str(error)
    assert not ctl.jobs() and not files(tmp_path)


def test_a_job_is_deleted_everywhere_or_still_listed(start_cluster, ballastd, tmp_path):
    cluster = start_cluster(2)
    ctl, name = Ctl(ballastd, cluster), fresh_job()
    start(cluster, name).close()
    cluster.kill(1, 9)
    cluster.exit_code(1)
    refused = ctl("delete", name)
    assert refused.returncode == 1 and "start all servers" in refused.stderr
    assert name in ctl.jobs()
    cluster.restart(1)
    # The home tries its peer again within a second.
    wait_for(lambda: ctl("delete", name).returncode == 0, "the job to be deleted")
    assert not files(tmp_path)
