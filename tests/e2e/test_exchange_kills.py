"""A kill at every failpoint of exports and imports, and a full disk: nothing half stays."""

from __future__ import annotations

import subprocess

import pytest

from ballast.ds_checkpoint import load_universal
from e2e.ballastctl import ctl, export, try_ctl
from e2e.cluster import fresh_job, wait_for
from e2e.exports import in_exports, shared
from e2e.small_run import Run, assert_equal

# Only the home reaches the points of the export as a whole.
KILLS = [
    (f"{kind}.{when}_{what}", server)
    for kind, what, servers in (
        ("export", "begin", (0,)),
        ("export", "mark", (0,)),
        ("export", "files", (0, 1)),
        ("export", "commit", (0,)),
        ("import", "state", (0, 1)),
    )
    for when in ("before", "after")
    for server in servers
]


def test_every_failpoint_of_exports_and_imports_is_killed_at(ballastd):
    names = subprocess.run([ballastd, "--list-failpoints"], capture_output=True, text=True)
    ours = {n for n in names.stdout.split() if n.startswith(("export.", "import."))}
    assert ours == {failpoint for failpoint, _ in KILLS}


@pytest.mark.parametrize(("failpoint", "server"), KILLS)
def test_a_kill_at_any_point_loses_nothing(start_cluster, tmp_path, failpoint, server):
    """Afterwards the result is whole or gone, and it can be requested again."""
    folder = tmp_path / "exports"
    cluster = start_cluster(2, **shared(tmp_path))
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    kept = run.state()
    export(cluster, job, "--name", "whole", "--state")
    run.close()
    cluster.arm(server, f"{failpoint}=1*kill")
    run = Run(cluster, job, 1, resume="must")
    killed = 0
    commands = [("export", job, "--name", "new", "--state"), ("import", "whole", "--as", "copy")]
    for command in commands:
        done = try_ctl(cluster, *command)
        if cluster.killed_by(server, done):
            killed += 1
            assert done.returncode != 0 or "after_commit" in failpoint
            cluster.restart(server)
            wait_for(lambda: try_ctl(cluster, "snapshot", "list").returncode == 0, "the home")
            for name in {*in_exports(tmp_path)} - {"whole"}:
                assert (folder / name / "job.ballast").exists() or server == 1
            wait_for(lambda: settled(try_ctl(cluster, *command)), "the command to be done")
    assert killed == 1
    for at, name in enumerate(("whole", "new")):
        ctl(cluster, "import", name, "--as", f"of-{name}")
        imported = Run(cluster, f"of-{name}", 1, resume="must")
        assert_equal(imported.state(), kept)
        imported.step(1 + at)
        imported.close()
    run.step(1)
    run.close()


@pytest.mark.parametrize(
    ("failpoint", "server"), [("export.after_files", 1), ("export.before_commit", 0)]
)
def test_a_kill_leaves_no_half_universal_checkpoint(start_cluster, tmp_path, failpoint, server):
    folder = tmp_path / "exports"
    cluster = start_cluster(2, **shared(tmp_path))
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(2)
    run.close()
    cluster.arm(server, f"{failpoint}=1*kill")
    cluster.wait_until_serving()
    command = ("export", job, "--name", "new", "--format", "deepspeed-universal")
    done = try_ctl(cluster, *command)
    assert cluster.killed_by(server, done) and done.returncode != 0
    cluster.restart(server)
    wait_for(lambda: try_ctl(cluster, "snapshot", "list").returncode == 0, "the home")
    assert not (folder / "new" / "latest_universal").exists()
    wait_for(lambda: settled(try_ctl(cluster, *command)), "the command to be done")
    assert load_universal(folder / "new")["g0.p0"].step == 2


def settled(done: subprocess.CompletedProcess) -> bool:
    return done.returncode == 0 or "is there already" in done.stderr or "exists" in done.stderr


def test_a_disk_that_fills_midway_leaves_the_job_running_and_nothing_half(start_cluster, tmp_path):
    cluster = start_cluster(1, BALLAST_STORAGE_EXPORT_DIR=str(tmp_path / "exports"))
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(1)
    run.close()
    cluster.arm(0, "export.after_files=1*return(RESOURCE_EXHAUSTED)")
    run = Run(cluster, job, 1, resume="must")
    ctl(cluster, "export", job, "--name", "out", fails=True)
    assert in_exports(tmp_path) == []
    run.step(1)
    export(cluster, job, "--name", "out")
    run.close()
