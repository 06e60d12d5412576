"""Interrupted exports and imports, or with files changed on the way: no partial result is left
anywhere, and every party hears what to do."""

from __future__ import annotations

import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.ballastctl import ask, ctl, export, jobs, listed, snapshots, try_ctl
from e2e.cluster import Cluster, wait_for
from e2e.exports import in_exports, rested, shared
from e2e.small_run import Run, assert_equal

# Longer than a test's work meanwhile; the first is shorter than a server that stops waits.
SLEEP = "sleep(1000)"
LONG_SLEEP = "sleep(4000)"


def on_disk(tmp_path: Path, server: int) -> list[str]:
    """A server's files below its directory of jobs."""
    return sorted(os.listdir(tmp_path / "cluster-0" / f"server-{server}" / "jobs"))


def arm(cluster: Cluster, server: int, failpoints: str, job: str) -> None:
    """As Cluster.arm; returns when all servers, which a snapshot of `job` needs, answer."""
    cluster.arm(server, failpoints)
    wait_for(
        lambda: try_ctl(cluster, "snapshot", "create", job, "probe").returncode == 0,
        "the servers to find each other",
    )
    snapshots(cluster, "delete", job, "probe")


def wait_until_asleep(cluster: Cluster, server: int, place: str) -> None:
    """Until a server armed to sleep at `place` does."""
    wait_for(lambda: f"failpoint {place} sleeps" in cluster.log(server), f"{place} to be reached")


def test_a_home_killed_while_it_exports_the_present_state_leaves_no_snapshot(
    start_cluster, tmp_path
):
    cluster = start_cluster(1, **shared(tmp_path))
    job = rested(cluster)
    snapshots(cluster, "create", job, "kept")
    before = sorted(os.listdir(tmp_path / "snapshots"))
    arm(cluster, 0, "export.before_files=1*kill", job)
    assert try_ctl(cluster, "export", job, "--name", "out").returncode != 0
    assert len(os.listdir(tmp_path / "snapshots")) == len(before) + 1
    cluster.restart(0)
    ask(cluster, "list")
    assert sorted(os.listdir(tmp_path / "snapshots")) == before
    assert [one["name"] for one in listed(cluster)] == ["kept"]
    assert in_exports(tmp_path) == []


def test_the_snapshot_of_an_export_has_no_owner(start_cluster, tmp_path):
    """While it is there it is in no list, and pushes no other one out."""
    cluster = start_cluster(1, **shared(tmp_path))
    job = rested(cluster)
    snapshots(cluster, "create", job, "kept")
    arm(cluster, 0, f"export.before_files=1*{LONG_SLEEP}", job)
    with ThreadPoolExecutor(1) as pool:
        exported = pool.submit(export, cluster, job, "--name", "out")
        wait_until_asleep(cluster, 0, "export.before_files")
        assert [one["name"] for one in listed(cluster)] == ["kept"]
        snapshots(cluster, "create", job, "newer", "--keep", "2")
        assert sorted(one["name"] for one in listed(cluster)) == ["kept", "newer"]
        for verb in ("delete", "verify", "show"):
            assert "no snapshot" in snapshots(cluster, verb, job, ".export", fails=True).stderr
        assert exported.result()["files"] == 1
    assert "no name" in snapshots(cluster, "create", job, ".export", fails=True).stderr
    assert len(os.listdir(tmp_path / "snapshots")) == 2
    ctl(cluster, "import", "out", "--as", "again")


def test_a_home_killed_during_an_import_leaves_nothing_at_its_peers(start_cluster, tmp_path):
    cluster = start_cluster(2, **shared(tmp_path))
    job = rested(cluster)
    export(cluster, job, "--name", "out", "--state")
    whole = on_disk(tmp_path, 1)
    arm(cluster, 0, "import.before_state=1*kill", job)
    assert try_ctl(cluster, "import", "out", "--as", "new").returncode != 0
    assert len(on_disk(tmp_path, 1)) == len(whole) + 1  # The home comes last.
    cluster.restart(0)
    ask(cluster, "list")
    wait_for(lambda: on_disk(tmp_path, 1) == whole, "the peer to drop the job")
    wait_for(lambda: on_disk(tmp_path, 0) == whole, "the home to know of it")
    assert jobs(cluster) == {job: "resting"}


@pytest.mark.parametrize("again", ["import", "restore"])
def test_a_name_that_was_being_imported_can_be_taken_at_once(start_cluster, tmp_path, again):
    """The peer still makes the job of the home's last life when the next order comes."""
    cluster = start_cluster(2, **shared(tmp_path))
    job = rested(cluster)
    snapshots(cluster, "create", job, "one")
    export(cluster, job, "--snapshot", "one", "--name", "out", "--state")
    arm(cluster, 1, f"import.before_state=1*{LONG_SLEEP}", job)
    with ThreadPoolExecutor(1) as pool:
        broken = pool.submit(try_ctl, cluster, "import", "out", "--as", "new")
        wait_until_asleep(cluster, 1, "import.before_state")
        cluster.strike(0)
        assert broken.result().returncode != 0
    ask(cluster, "list")
    if again == "import":
        ctl(cluster, "import", "out", "--as", "new")
    else:
        snapshots(cluster, "restore", job, "one", "--as", "new")
    wait_for(lambda: on_disk(tmp_path, 1) == on_disk(tmp_path, 0), "both to have the same jobs")
    assert jobs(cluster) == {job: "resting", "new": "resting"}
    runs = [Run(cluster, name, 1, resume="must") for name in (job, "new")]
    assert_equal(runs[0].state(), runs[1].state())
    for run in runs:
        run.step(1)
        run.close()


@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize("what", ["export", "import"])
def test_a_server_that_stops_does_not_wait_for_the_end(start_cluster, tmp_path, what, server):
    cluster = start_cluster(2, **shared(tmp_path))
    job = rested(cluster)
    export(cluster, job, "--name", "out", "--state")
    place = "export.before_files" if what == "export" else "import.before_state"
    arm(cluster, server, f"{place}=1*{SLEEP}", job)
    command = {
        "export": ("export", job, "--name", "new", "--state"),
        "import": ("import", "out", "--as", "new"),
    }[what]
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(try_ctl, cluster, *command)
        wait_until_asleep(cluster, server, place)
        cluster.kill(server, signal.SIGTERM)
        assert cluster.exit_code(server) == 0
        refused = said.result()
    assert refused.returncode != 0
    assert f"server {server} is shutting down" in refused.stderr
    cluster.restart(server)
    ask(cluster, "list")
    assert in_exports(tmp_path) == ["out"]
    assert jobs(cluster) == {job: "resting"}
    wait_for(lambda: all(len(on_disk(tmp_path, s)) == 1 for s in (0, 1)), "nothing half to be left")
    assert listed(cluster) == [] and os.listdir(tmp_path / "snapshots") == []
    wait_for(lambda: try_ctl(cluster, *command).returncode == 0, "the servers to do it")


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("export.before_files", ("export", "JOB", "--name", "new")),
        ("import.before_state", ("import", "out", "--as", "new")),
        ("restore.before_state", ("snapshot", "restore", "JOB", "one", "--as", "new")),
    ],
)
def test_a_peer_that_is_lost_is_named(start_cluster, tmp_path, place, command):
    cluster = start_cluster(2, **shared(tmp_path))
    job = rested(cluster)
    snapshots(cluster, "create", job, "one")
    export(cluster, job, "--snapshot", "one", "--name", "out", "--state")
    arm(cluster, 1, f"{place}=1*kill", job)
    refused = ctl(cluster, *(job if word == "JOB" else word for word in command), fails=True)
    assert "server 1 was lost while it" in refused.stderr
    assert "call again when that server runs" in refused.stderr
    assert '"new"' in refused.stderr
    cluster.restart(1)


@pytest.mark.parametrize(
    "command",
    [
        ("export", "JOB", "--snapshot", "one", "--name", "new"),
        ("import", "out", "--as", "new"),
        ("snapshot", "restore", "JOB", "one", "--as", "new"),
        ("snapshot", "fork", "JOB", "one", "--as", "new"),
    ],
)
def test_a_peer_that_still_starts_is_waited_for(start_cluster, tmp_path, command):
    cluster = start_cluster(2, **shared(tmp_path))
    job = rested(cluster)
    snapshots(cluster, "create", job, "one")
    export(cluster, job, "--snapshot", "one", "--name", "out", "--state")
    with ThreadPoolExecutor(1) as pool:
        with cluster.starting(1):
            words = [job if word == "JOB" else word for word in command]
            said = pool.submit(try_ctl, cluster, *words)
            wait_for(
                lambda: said.done() or "waits for its peers file" in cluster.log(0),
                "the home to wait for its peer",
            )
            assert not said.done(), said.result().stderr
        assert said.result().returncode == 0, said.result().stderr
    assert "new" in (in_exports(tmp_path) if command[0] == "export" else jobs(cluster))


def test_a_snapshot_that_is_deleted_while_it_is_exported_is_named(start_cluster, tmp_path):
    cluster = start_cluster(2, **shared(tmp_path))
    job = rested(cluster)
    snapshots(cluster, "create", job, "one")
    arm(cluster, 1, f"export.before_files=1*{LONG_SLEEP}", job)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(export, cluster, job, "--name", "first")
        wait_until_asleep(cluster, 1, "export.before_files")
        # Server 1 is still at the first one.
        second = pool.submit(
            try_ctl, cluster, "export", job, "--snapshot", "one", "--name", "second"
        )
        wait_for(lambda: (tmp_path / "exports" / "second").exists(), "the second to begin")
        snapshots(cluster, "delete", job, "one")
        assert first.result()["files"] == 2
        refused = second.result()
    assert refused.returncode != 0
    assert f'snapshot "one" of job "{job}" was deleted while it was exported' in refused.stderr
    assert in_exports(tmp_path) == ["first"]


def test_a_server_that_sees_other_files_than_the_home_says_so(start_cluster, tmp_path):
    cluster = start_cluster(2, **shared(tmp_path))
    job = rested(cluster)
    export(cluster, job, "--name", "out", "--state")
    arm(cluster, 1, f"export.before_files=1*{LONG_SLEEP}", job)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(export, cluster, job, "--name", "first")
        wait_until_asleep(cluster, 1, "export.before_files")
        imported = pool.submit(try_ctl, cluster, "import", "out", "--as", "new")
        wait_for(
            lambda: any(name.endswith(".ordered") for name in on_disk(tmp_path, 0)),
            "the home to have looked",
        )
        shutil.rmtree(tmp_path / "exports" / "out" / "optimizer")
        first.result()
        refused = imported.result()
    assert refused.returncode != 0
    assert "server 1 sees none of the optimizer state" in refused.stderr
    assert "the home has seen some" in refused.stderr
    assert jobs(cluster) == {job: "resting"}


def test_a_wait_for_an_export_reports_its_progress(start_cluster, tmp_path):
    cluster = start_cluster(1, **shared(tmp_path))
    job = rested(cluster)
    arm(cluster, 0, "export.after_files=1*sleep(3000)", job)
    said = ctl(cluster, "export", job, "--name", "new")
    line = r"^export: [\d.]+ KiB of [\d.]+ KiB \(\d+ %\), \d+ MB/s$"
    assert re.search(line, said.stderr, re.MULTILINE), said.stderr
    assert "MB/s" in said.stdout
