"""Forks: a job begins in the files of a snapshot, without a copy of it, and is the job that a
restore would have made; whatever ends, nothing of either is lost."""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.ballastctl import ask, listed, snapshots
from e2e.cluster import Cluster, fresh_job, run_small_job
from e2e.small_run import Run, assert_equal


def borrowed(folder: Path) -> list[str]:
    """Files in the data directories of a cluster whose bytes are those of a snapshot."""
    return sorted(path.name for path in folder.glob("**/base*") if path.name != "base.tmp")


def fork(cluster: Cluster, job: str, name: str, *arguments: str) -> str:
    new = fresh_job("fork")
    done = snapshots(cluster, "fork", job, name, "--as", new, *arguments)
    assert "copies the state" not in done.stderr
    return new


@pytest.fixture
def shared(tmp_path: Path) -> dict[str, str]:
    return {"BALLAST_STORAGE_SNAPSHOT_DIR": str(tmp_path / "snapshots")}


@pytest.mark.parametrize(
    ("servers", "world", "device"),
    [((1, 3), 1, "cpu"), ((3, 2), 4, "cpu"), ((2, 2), 2, "nvme"), ((1, 3), 2, "nvme")],
)
def test_a_fork_goes_its_own_way_as_a_restored_job_does(
    start_cluster, tmp_path, shared, servers, world, device
):
    before, after = (start_cluster(count, **shared) for count in servers)
    job, restored = fresh_job(), fresh_job("restored")
    run = Run(before, job, 2, device=device)
    run.step(3)
    run.trainers.optimizers[-1].snapshot("third")
    at_snapshot = run.state()
    snapshots(after, "restore", job, "third", "--as", restored, "--world", str(world))
    forked = fork(after, job, "third", "--world", str(world))
    runs = [Run(after, name, world, resume="must", device=device) for name in (forked, restored)]
    for one in runs:
        assert one.round == 3
        assert_equal(one.state(), at_snapshot)
    for one in runs:
        one.step(2)
    run.step(2)
    for one in runs:
        assert_equal(one.state(), run.state())
    # From here on they differ, and one's writes reach no other.
    runs[0].step(6, seed=7)
    run.step(6, seed=8)
    runs[1].step(6, seed=7)
    assert_equal(runs[0].state(), runs[1].state())
    assert not (run.state()[0] == runs[0].state()[0]).all()
    for one in (*runs, run):
        one.close()
    snapshots(after, "verify", job, "third")


def test_a_fork_copies_nothing_and_gives_back_what_it_borrowed(start_cluster, tmp_path, shared):
    cluster = start_cluster(2, **shared)
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    run.trainers.optimizers[0].snapshot("one")
    kept = run.state()
    forked = fork(cluster, job, "one")
    parts = sorted((tmp_path / "snapshots").glob("*/part-*"))
    links = [path for path in (tmp_path / "cluster-0").glob("**/base-*")]
    assert {os.stat(p).st_ino for p in links} == {os.stat(p).st_ino for p in parts}
    snapshots(cluster, "delete", job, "one")
    again = Run(cluster, forked, 1, resume="must")
    assert_equal(again.state(), kept)
    again.step(6)  # checkpoint_rounds and two more: every extent has been written twice.
    run.step(6)
    assert_equal(again.state(), run.state())
    assert borrowed(tmp_path / "cluster-0") == []
    for server in (0, 1):
        cluster.strike(server)
        again.step(1)
        run.step(1)
    assert_equal(again.state(), run.state())
    for one in (again, run):
        one.close()


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_kills_between_a_fork_and_its_rounds_lose_nothing(start_cluster, tmp_path, shared, device):
    cluster = start_cluster(2, **shared)
    job = fresh_job()
    run = Run(cluster, job, 1, device=device)
    run.step(2)
    run.trainers.optimizers[0].snapshot("one")
    kept = run.state()
    forked = fork(cluster, job, "one")
    snapshots(cluster, "delete", job, "one")
    cluster.strike(0, 1)
    assert {"base", "base-0", "base-1"} == set(borrowed(tmp_path / "cluster-0"))
    again = Run(cluster, forked, 1, resume="must", device=device)
    assert_equal(again.state(), kept)
    for _ in range(5):
        again.step(1)
        run.step(1)
        cluster.strike(0, 1)
        assert_equal(again.state(), run.state())
    for one in (again, run):
        one.close()


def test_a_fork_can_be_taken_a_snapshot_of_forked_and_deleted_before_its_first_round(
    start_cluster, tmp_path, shared
):
    cluster = start_cluster(2, **shared)
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    run.trainers.optimizers[0].snapshot("one")
    first = fork(cluster, job, "one")
    snapshots(cluster, "create", first, "two")
    snapshots(cluster, "delete", job, "one")
    second = fork(cluster, first, "two")
    jobs = [str(cluster.binary.parent / "ballastctl"), "jobs", "delete", first]
    subprocess.run([*jobs, "--endpoint", cluster.endpoints[0]], check=True, timeout=60)
    again = Run(cluster, second, 1, resume="must")
    assert_equal(again.state(), run.state())
    # A running one, whose slots are borrowed in part.
    again.step(1)
    again.trainers.optimizers[0].snapshot("three")
    third = Run(cluster, fork(cluster, second, "three"), 1, resume="must")
    assert_equal(third.state(), again.state())
    for one in (run, again, third):
        one.close()


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_a_fork_that_grows_takes_what_it_borrowed_along(start_cluster, tmp_path, shared, device):
    cluster = start_cluster(2, **shared)
    job = fresh_job()
    run = Run(cluster, job, 2, device=device)
    run.step(2)
    run.trainers.optimizers[0].snapshot("one")
    again = Run(cluster, fork(cluster, job, "one"), 2, resume="must", device=device)
    for one in (run, again):
        one.step(1)  # Not every extent has a version of its own yet.
        one.grow()
        one.step(2)
    assert_equal(again.state(), run.state())
    assert borrowed(tmp_path / "cluster-0") == []
    # A job whose files lie in a directory of its second layout.
    run.trainers.optimizers[0].snapshot("two")
    grown = fork(cluster, job, "two")
    for one in (run, again):
        one.close()
    cluster.strike(0, 1)
    assert ask(cluster, "delete", job, "two").returncode == 0
    assert len(list((tmp_path / "cluster-0").glob("**/layout-2/base"))) == 2
    assert ask(cluster, "create", grown, "three").returncode == 0
    third = fork(cluster, grown, "three")
    subprocess.run(
        [str(cluster.binary.parent / "ballastctl"), "jobs", "delete", grown, "--endpoint",
         cluster.endpoints[0]], check=True, timeout=60,
    )  # fmt: skip
    restored = fresh_job("restored")
    snapshots(cluster, "restore", grown, "three", "--as", restored)
    left = [snapshot_of(tmp_path / "snapshots", cluster, name) for name in (third, restored)]
    assert left[0] == left[1]


def snapshot_of(folder: Path, cluster: Cluster, job: str) -> dict[int, bytes]:
    """The state of every extent of a job that rests."""
    assert ask(cluster, "create", job, "compared").returncode == 0
    (found,) = [one for one in listed(cluster) if one["job"] == job]
    return {
        extent: payload
        for part in (folder / found["id"]).glob("part-*")
        for extent, payload in payloads(part).items()
    }


def payloads(part: Path) -> dict[int, bytes]:
    """The states in a slot file with one place for each extent (docs/formats/images.md)."""
    content, at, found = part.read_bytes(), 4096, {}
    while at < len(content):
        extent, payload_bytes, chunks = (
            int.from_bytes(content[at + place : at + place + size], "little")
            for place, size in ((40, 4), (64, 8), (72, 4))
        )
        begin = at + -(-(100 + 4 * chunks) // 4096) * 4096
        found[extent] = content[begin : begin + payload_bytes]
        at = begin + -(-payload_bytes // 4096) * 4096
    return found


def test_what_is_lost_of_a_fork_is_named_and_nothing_is_changed(start_cluster, tmp_path, shared):
    cluster = start_cluster(1, **shared)
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    run.trainers.optimizers[0].snapshot("one")
    forked = fork(cluster, job, "one")
    (base,) = (tmp_path / "cluster-0").glob("**/base")
    for lost in (base, base.with_name("base-0")):
        kept = lost.rename(tmp_path / "kept")
        place = f"storage.data_dir/jobs/{lost.parent.name}/{lost.name}"
        with pytest.raises(Exception, match=place):
            Run(cluster, forked, 1, resume="must")
        kept.rename(lost)
    again = Run(cluster, forked, 1, resume="must")
    assert_equal(again.state(), run.state())
    for one in (run, again):
        one.close()


def test_a_damaged_or_missing_snapshot_is_not_forked(start_cluster, tmp_path, shared):
    cluster = start_cluster(1, **shared)
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    run.trainers.optimizers[0].snapshot("one")
    run.close()
    assert "has no snapshot" in snapshots(
        cluster, "fork", job, "two", "--as", "new", fails=True
    ).stderr
    (part,) = (tmp_path / "snapshots").glob("*/part-0")
    part.write_bytes(part.read_bytes()[:5000])
    said = snapshots(cluster, "fork", job, "one", "--as", "new", fails=True).stderr
    assert "part-0" in said
    assert borrowed(tmp_path / "cluster-0") == []
    run_small_job(cluster)


@pytest.mark.skipif(
    not os.access("/dev/shm", os.W_OK), reason="wants a second file system, /dev/shm"
)
def test_where_files_cannot_be_linked_the_state_is_copied_and_said_so(start_cluster, tmp_path):
    folder = Path("/dev/shm") / f"ballast-{os.getpid()}-{fresh_job('snapshots')}"
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("/dev/shm is on the device of the data")
    try:
        cluster = start_cluster(2, BALLAST_STORAGE_SNAPSHOT_DIR=str(folder))
        job, new = fresh_job(), fresh_job("fork")
        run = Run(cluster, job, 1)
        run.step(2)
        run.trainers.optimizers[0].snapshot("one")
        done = snapshots(cluster, "fork", job, "one", "--as", new, "-o", "json")
        assert "copies the state" in done.stderr and "cross-device" in done.stderr
        assert json.loads(done.stdout)["jobs"][0]["name"] == new
        assert borrowed(tmp_path) == []
        again = Run(cluster, new, 1, resume="must")
        assert_equal(again.state(), run.state())
        for one in (run, again):
            one.close()
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


FAILPOINTS = [
    "fork.before_links",
    "fork.after_links",
    "fork.before_return",
    "fork.after_return",
    "restore.before_state",
    "restore.after_state",
    "job.before_create",
    "job.after_create",
]


def test_every_failpoint_of_forks_is_killed_at(ballastd):
    names = subprocess.run([ballastd, "--list-failpoints"], capture_output=True, text=True)
    ours = {n for n in names.stdout.split() if n.startswith("fork.")}
    assert ours and ours <= set(FAILPOINTS)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_kill_at_any_point_of_a_fork_loses_nothing(
    start_cluster, tmp_path, shared, failpoint, victim
):
    cluster = start_cluster(2, **shared)
    job, new = fresh_job(), fresh_job("fork")
    run = Run(cluster, job, 1)
    run.step(2)
    run.trainers.optimizers[0].snapshot("one")
    kept = run.state()
    run.close()
    cluster.arm(victim, f"{failpoint}=1*kill")
    done = ask(cluster, "fork", job, "one", "--as", new)
    killed = cluster.killed_by(victim, done)
    if killed:
        cluster.restart(victim)
        ask(cluster, "verify", job, "one")
        done = ask(cluster, "fork", job, "one", "--as", new)
    assert done.returncode == 0 or (killed and f'"{new}" exists;' in done.stderr), done.stderr
    snapshots(cluster, "delete", job, "one")
    again = Run(cluster, new, 1, resume="must")
    assert_equal(again.state(), kept)
    run = Run(cluster, job, 1, resume="must")
    with ThreadPoolExecutor(1) as pool:
        steps = pool.submit(lambda: [one.step(7) for one in (again, run)])
        while not steps.done():
            if not cluster.running()[victim]:
                killed = True
                cluster.restart(victim)
            time.sleep(0.01)
        steps.result()
    assert killed
    for one in (again, run):
        one.step(6)  # A freshly started server wants one more version of each extent.
    assert_equal(again.state(), run.state())
    assert borrowed(tmp_path / "cluster-0") == []
    for one in (run, again):
        one.close()
