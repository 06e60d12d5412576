"""Snapshots: a moment of a run is named, comes back bit for bit on other servers and with other
trainers, and both runs go their own way."""

from __future__ import annotations

import subprocess

import pytest
import torch

import ballast
from e2e.ballastctl import ctl, export, listed, snapshots, try_snapshots
from e2e.cluster import Cluster, fresh_job, run_small_job, wait_for
from e2e.small_run import Run, assert_equal


@pytest.mark.parametrize(
    ("servers", "world", "device"),
    [((1, 3), (2, 1), "cpu"), ((3, 2), (1, 4), "cpu"), ((1, 3), (2, 4), "nvme")],
)
def test_a_restored_job_continues_as_the_run_did(start_cluster, tmp_path, servers, world, device):
    shared = {"BALLAST_STORAGE_SNAPSHOT_DIR": str(tmp_path / "snapshots")}
    before, after = (start_cluster(count, **shared) for count in servers)
    job, fork = fresh_job(), fresh_job("fork")
    run = Run(before, job, world[0], device=device)
    run.step(3)
    # Whether one rank asks for it or all, it is one snapshot.
    assert run.trainers.each(lambda opt: opt.snapshot("third")) == [3] * world[0]
    at_snapshot = run.state()
    run.step(3)
    went_on = run.state()
    run.step(1)

    assert [(one["name"], one["round"]) for one in listed(after)] == [("third", 4)]
    snapshots(after, "verify", job, "third")
    snapshots(after, "restore", job, "third", "--as", fork, "--world", str(world[1]))
    again = Run(after, fork, world[1], resume="must", device=device)
    assert again.round == 3
    assert_equal(again.state(), at_snapshot)
    again.step(3)
    assert_equal(again.state(), went_on)

    # They are two jobs now.
    again.step(1, seed=7)
    assert not torch.equal(again.state()[0], run.state()[0])
    run.step(1)
    for one in (again, run):
        one.close()
    snapshots(before, "delete", job, "third")
    assert listed(after) == []
    assert list((tmp_path / "snapshots").iterdir()) == []


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_a_job_comes_back_from_before_its_first_round(start_cluster, tmp_path, device):
    """As scripts save that write a checkpoint before they train; `made` is killed before it has
    stepped, too."""
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path / "snapshots"))
    job, made, out = fresh_job(), fresh_job("made"), fresh_job("out")
    run = Run(cluster, job, 2, resume="auto", device=device)
    assert run.trainers.optimizers[0].snapshot("start") == 0
    export(cluster, job, "--name", "start", "--state")
    start = run.state()
    run.step(2)
    went_on = run.state()
    run.close()
    snapshots(cluster, "verify", job, "start")
    snapshots(cluster, "restore", job, "start", "--as", made, "--world", "1")
    ctl(cluster, "import", "start", "--as", out, "--world", "1")
    again = Run(cluster, made, 1, resume="must", device=device)
    assert again.round == 0
    cluster.strike(0, 1)
    assert_equal(again.state(), start)
    again.step(2)
    assert_equal(again.state(), went_on)
    again.close()
    imported = Run(cluster, out, 1, resume="must", device=device)
    assert imported.round == 0
    assert_equal(imported.state(), start)
    imported.step(2)
    assert_equal(imported.state(), went_on)
    imported.close()


def test_snapshots_are_taken_while_rounds_go_on_and_the_oldest_are_removed(start_cluster, tmp_path):
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path / "snapshots"))
    job = fresh_job()
    run = Run(cluster, job, 2)
    run.step(1)
    states = {run.round: run.state()}
    for i in range(4):
        with_rounds = run.trainers._pool.submit(
            snapshots, cluster, "create", job, f"s{i}", "--keep", "2"
        )
        while not with_rounds.done():
            run.step(1)
            states[run.round] = run.state()
        with_rounds.result()
    kept = listed(cluster)
    assert [one["name"] for one in kept] == ["s2", "s3"]
    for one in kept:
        fork = fresh_job("fork")
        snapshots(cluster, "restore", job, one["name"], "--as", fork)
        again = Run(cluster, fork, 2, resume="must")
        assert again.round == one["round"] - 1
        assert_equal(again.state(), states[again.round])
        again.close()
    run.close()


def test_the_snapshot_just_taken_is_never_one_too_many(start_cluster, tmp_path):
    cluster = start_cluster(1)
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(1)
    run.close()
    for i in range(9):  # All are of one round, most of one second.
        snapshots(cluster, "create", job, f"s{i}", "--keep", "2")
        kept = [one["name"] for one in listed(cluster)]
        assert f"s{i}" in kept and len(kept) == min(i + 1, 2)


def test_what_cannot_be_is_refused_by_name(start_cluster, tmp_path):
    cluster = start_cluster(1)
    job = fresh_job()
    run = Run(cluster, job, 1)
    optimizer = run.trainers.optimizers[0]
    run.step(1)
    optimizer.snapshot("one")
    run.step(1)
    with pytest.raises(ballast.NameInUse, match='has a snapshot "one" already'):
        optimizer.snapshot("one")
    for name in ("../up", ".hidden", "", "a" * 65, "a/b", "-x\n"):
        with pytest.raises(ballast.BadArgument, match="is no name of a snapshot"):
            optimizer.snapshot(name)
    refused = {
        ("create", "nobody", "x"): 'there is no job "nobody"',
        ("show", job, "two"): 'has no snapshot "two"',
        ("verify", job, "two"): 'has no snapshot "two"',
        ("delete", job, "two"): 'has no snapshot "two"',
        ("restore", job, "two", "--as", "new"): 'has no snapshot "two"',
        ("restore", job, "one", "--as", job): f'job "{job}" exists',
        ("restore", job, "one", "--as", "new", "--world", "100000"): "100000",
        ("restore", job, "one"): "snapshot restore needs --as NEW",
    }
    for arguments, why in refused.items():
        assert why in snapshots(cluster, *arguments, fails=True).stderr
    assert [one["name"] for one in listed(cluster)] == ["one"]
    run.step(1)
    run.close()


def test_a_cluster_without_a_shared_directory_says_so(start_cluster):
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR="")
    run = Run(cluster, fresh_job(), 1)
    run.step(1)
    with pytest.raises(ballast.Unsupported, match="storage.snapshot_dir"):
        run.trainers.optimizers[0].snapshot("one")
    run.step(1)
    run.close()


def test_a_damaged_snapshot_is_named_and_never_becomes_a_job(start_cluster, tmp_path):
    cluster = start_cluster(1)
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    run.trainers.optimizers[0].snapshot("one")
    (part,) = (tmp_path / "cluster-0" / "snapshots").glob("*/part-0")
    whole = part.read_bytes()
    part.write_bytes(whole[:9000] + bytes([whole[9000] ^ 1]) + whole[9001:])
    for arguments in (("verify", job, "one"), ("restore", job, "one", "--as", "new")):
        said = snapshots(cluster, *arguments, fails=True).stderr
        assert f"storage.snapshot_dir/{part.parent.name}/part-0" in said and "damaged" in said
    manifest = part.with_name("MANIFEST")
    manifest.write_bytes(manifest.read_bytes()[:-1] + b"x")
    assert listed(cluster) == []
    run.step(1)
    run.close()
    run_small_job(cluster)


FAILPOINTS = [
    "snapshot.before_begin",
    "snapshot.after_begin",
    "snapshot.before_part",
    "snapshot.after_part",
    "snapshot.before_manifest",
    "snapshot.after_manifest",
    "snapshot.before_remove",
    "snapshot.after_remove",
    "restore.before_state",
    "restore.after_state",
    "job.before_create",
    "job.after_create",
]


def test_every_failpoint_of_snapshots_is_killed_at(ballastd):
    names = subprocess.run([ballastd, "--list-failpoints"], capture_output=True, text=True)
    ours = {n for n in names.stdout.split() if n.startswith(("snapshot.", "restore."))}
    assert ours and ours <= set(FAILPOINTS)


def killed_by(cluster: Cluster, job: str, *command: str) -> bool:
    """Whether this command, which is done at the end, has run into the armed failpoint."""
    done = try_snapshots(cluster, *command)
    killed = cluster.killed_by(0, done)
    if killed:
        cluster.restart(0)
        wait_for(lambda: try_snapshots(cluster, "list").returncode == 0, "the home to serve")
        names = [one["name"] for one in listed(cluster)]
        assert names in (["kept"], ["kept", "new"])
        for name in names:
            snapshots(cluster, "verify", job, name)
        done = try_snapshots(cluster, *command)
    assert done.returncode == 0 or "exists" in done.stderr or "already" in done.stderr or (
        command[0] == "delete" and "has no snapshot" in done.stderr
    ), done.stderr
    return killed


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_kill_at_any_point_loses_nothing(start_cluster, tmp_path, failpoint):
    """Of the home, which decides: a listed snapshot is whole, and an unlisted one is gone."""
    folder = tmp_path / "snapshots"
    cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(folder))
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    run.trainers.optimizers[0].snapshot("kept")
    kept = run.state()
    run.close()
    cluster.arm(0, f"{failpoint}=1*kill")
    run = Run(cluster, job, 1, resume="must")
    run.step(1)
    commands = [
        ("create", job, "new"),
        ("delete", job, "new"),
        ("restore", job, "kept", "--as", f"{job}-fork"),
    ]
    assert sum(killed_by(cluster, job, *command) for command in commands) == 1
    assert [one["name"] for one in listed(cluster)] == ["kept"]
    (directory,) = folder.iterdir()
    assert sorted(path.name for path in directory.iterdir()) == ["MANIFEST", "part-0", "part-1"]
    run.step(1)
    fork = Run(cluster, f"{job}-fork", 1, resume="must")
    assert_equal(fork.state(), kept)
    for one in (run, fork):
        one.close()
