"""Snapshots of jobs that rest: they hold the trainers' last state, and the job wakes after."""

from __future__ import annotations

import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from e2e.ballastctl import ask, listed, snapshots, try_snapshots
from e2e.cluster import Cluster, fresh_job, wait_for
from e2e.small_run import Run, assert_equal


@pytest.mark.parametrize(("servers", "device"), [((2, 3), "cpu"), ((1, 2), "nvme")])
def test_of_a_job_that_rests_it_is_the_state_its_trainers_left(
    start_cluster, tmp_path, servers, device
):
    shared = {"BALLAST_STORAGE_SNAPSHOT_DIR": str(tmp_path / "snapshots")}
    before, after = (start_cluster(count, **shared) for count in servers)
    job, again = fresh_job(), fresh_job("again")
    run = Run(before, job, 2, device=device)
    run.step(3)
    left = run.state()
    run.close()
    snapshots(before, "create", job, "at-rest")
    before.strike(*range(servers[0]))  # Nothing of the job is in a process now.
    assert ask(before, "create", job, "after-a-restart").returncode == 0
    shown = {one["name"]: one for one in listed(after)}
    assert {name: one["round"] for name, one in shown.items()} == {
        "at-rest": 4,
        "after-a-restart": 4,
    }
    for name in shown:
        snapshots(after, "verify", job, name)
        snapshots(after, "restore", job, name, "--as", f"{again}-{name}", "--world", "2")
        restored = Run(after, f"{again}-{name}", 2, resume="must", device=device)
        assert restored.round == 3
        assert_equal(restored.state(), left)
        restored.step(2)
        restored.close()
    run = Run(before, job, 2, resume="must", device=device)
    assert_equal(run.state(), left)
    run.step(2)
    went_on = run.state()
    run.close()
    # A job without a step, and one with steps, under other owners.
    restored = Run(after, f"{again}-at-rest", 2, resume="must", device=device)
    assert_equal(restored.state(), went_on)
    restored.close()
    never = f"{again}-never"
    snapshots(after, "restore", job, "at-rest", "--as", never, "--world", "1")
    assert_equal(state_over_there(after, never, before, device), left)


def state_over_there(here: Cluster, job: str, there: Cluster, device: str) -> list[torch.Tensor]:
    """State of a resting job, never stepped `here`, that is restored `there`."""
    snapshots(here, "create", job, "unstepped")
    snapshots(there, "restore", job, "unstepped", "--as", f"{job}-stepped", "--world", "1")
    run = Run(there, f"{job}-stepped", 1, resume="must", device=device)
    state = run.state()
    run.close()
    return state


def leave(cluster: Cluster, job: str) -> list[torch.Tensor]:
    """Two rounds of a job that rests then; its state."""
    run = Run(cluster, job, 1)
    run.step(2)
    left = run.state()
    run.close()
    return left


def begin_at_rest(pool: ThreadPoolExecutor, cluster: Cluster, job: str, folder: Path) -> Future:
    """Begins snapshot "one" of a resting job; its first part exists, the other server is late."""
    creating = pool.submit(ask, cluster, "create", job, "one")
    wait_for(lambda: creating.done() or list(folder.glob("*/part-0")), "the first part")
    assert not creating.done()
    return creating


def test_a_resting_job_wakes_when_its_snapshot_is_there(start_cluster, tmp_path):
    """Those who attach meanwhile wait; deleting it is refused."""
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path / "snapshots"))
    job = fresh_job()
    left = leave(cluster, job)
    cluster.arm(1, "snapshot.before_part=1*sleep(3000)")
    with ThreadPoolExecutor(1) as pool:
        creating = begin_at_rest(pool, cluster, job, tmp_path / "snapshots")
        jobs = [str(cluster.binary.parent / "ballastctl"), "jobs", "delete", job]
        jobs += ["--endpoint", cluster.endpoints[0]]
        refused = subprocess.run(jobs, capture_output=True, text=True, timeout=60)
        assert refused.returncode != 0 and "is being taken" in refused.stderr
        assert "being taken" in try_snapshots(cluster, "create", job, "two").stderr
        run = Run(cluster, job, 1, resume="must")
        assert creating.done(), "it was woken while the snapshot was taken"
        assert creating.result().returncode == 0, creating.result().stderr
    assert_equal(run.state(), left)
    run.step(1)
    run.close()
    snapshots(cluster, "verify", job, "one")


@pytest.mark.parametrize(
    ("failpoint", "victim"),
    [("snapshot.after_part", 0), ("snapshot.after_part", 1), ("snapshot.before_manifest", 0)],
)
def test_a_server_that_dies_in_a_snapshot_of_a_resting_job_takes_only_that(
    start_cluster, tmp_path, failpoint, victim
):
    folder = tmp_path / "snapshots"
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(folder))
    job = fresh_job()
    left = leave(cluster, job)
    cluster.arm(victim, f"{failpoint}=1*kill")
    assert ask(cluster, "create", job, "one").returncode != 0
    cluster.restart(victim)
    run = Run(cluster, job, 1, resume="must")  # Whatever the other one still has open.
    assert_equal(run.state(), left)
    run.step(1)
    run.close()
    assert ask(cluster, "create", job, "two").returncode == 0
    assert [one["name"] for one in listed(cluster)] == ["two"]
    assert len(list(folder.iterdir())) == 1
    snapshots(cluster, "verify", job, "two")


def test_a_home_that_dies_in_a_snapshot_of_a_resting_job_finds_it_ready_to_wake(
    start_cluster, tmp_path
):
    """Its peer still has the job's files open for the snapshot that nobody knows any more."""
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path / "snapshots"))
    job = fresh_job()
    left = leave(cluster, job)
    cluster.arm(1, "snapshot.before_part=1*sleep(2000)")
    with ThreadPoolExecutor(1) as pool:
        creating = begin_at_rest(pool, cluster, job, tmp_path / "snapshots")
        cluster.strike(0)
        assert creating.result().returncode != 0
    run = Run(cluster, job, 1, resume="must")
    assert_equal(run.state(), left)
    run.step(1)
    assert ask(cluster, "create", job, "two").returncode == 0
    run.close()
    assert [one["name"] for one in listed(cluster)] == ["two"]
    snapshots(cluster, "verify", job, "two")


def test_a_job_that_rests_before_its_first_round_has_no_snapshot(start_cluster, tmp_path):
    cluster = start_cluster(1)
    job = fresh_job()
    run = Run(cluster, job, 1, resume="auto")
    run.close()
    said = snapshots(cluster, "create", job, "one", fails=True).stderr
    assert "rests and has not finished a round" in said
    assert listed(cluster) == []
