"""Records and directories that do not fit each other: the server names them.

Without a record it does not start; without a directory only that job is not opened. Its advice then
works.
"""

from __future__ import annotations

import shutil
import signal
import subprocess

import pytest
import torch

import ballast
from e2e.ballastctl import ctl, try_ctl
from e2e.cluster import Cluster, Trainers, fresh_job, run_small_job, wait_for


def make_job(cluster: Cluster, name: str) -> None:
    parameter = torch.nn.Parameter(torch.ones(1000))
    parameter.grad = torch.ones_like(parameter)
    trainers = Trainers(cluster, [[parameter]], job=name, durability="power")
    trainers.step()
    trainers.close()


def end(cluster: Cluster) -> None:
    cluster.kill(0, signal.SIGKILL)
    cluster.exit_code(0)


def refusal(cluster: Cluster, code: int = 4) -> str:
    """Starts the server, which must refuse, and returns its message."""
    cluster.restart(0)
    assert cluster.exit_code(0) == code
    return cluster._servers.report(0)


def test_a_directory_without_a_record_is_named_and_the_job_can_be_given_up(
    start_cluster, tmp_path
):
    cluster, name = start_cluster(1), fresh_job()
    make_job(cluster, name)
    end(cluster)
    data = tmp_path / "cluster-0" / "server-0"
    (job,) = (data / "jobs").iterdir()
    shutil.rmtree(data / "meta")
    assert f"{job}: the metadata store has no record" in refusal(cluster)
    job.rename(f"{job}.gone")
    cluster.restart(0)
    run_small_job(cluster)
    make_job(cluster, name)  # The name is free again.


def test_a_job_without_its_directory_keeps_no_other_job_down(start_cluster, tmp_path):
    cluster, name, other = start_cluster(1), fresh_job(), fresh_job()
    make_job(cluster, name)
    (job,) = (tmp_path / "cluster-0" / "server-0" / "jobs").iterdir()
    make_job(cluster, other)
    end(cluster)
    job.rename(tmp_path / "aside")
    cluster.restart(0)
    run_small_job(cluster)
    weights = torch.nn.Parameter(torch.ones(1000))
    opt = Trainers(cluster, [[weights]], job=other, durability="power", resume="must")
    opt.each(lambda o: o.attach())
    opt.close()
    said = ctl(cluster, "health", fails=True)
    assert said.returncode == 6
    place = f"storage.data_dir/jobs/{job.name}"
    assert f"job {name} is damaged" in said.stdout and place in said.stdout
    parameter = torch.nn.Parameter(torch.ones(1000))
    opt = Trainers(cluster, [[parameter]], job=name, durability="power", resume="auto")
    with pytest.raises(ballast.StateLost, match=f"ballastctl jobs retry {name}"):
        opt.each(lambda o: o.attach())
    assert place in ctl(cluster, "jobs", "retry", name, fails=True).stderr
    (tmp_path / "aside").rename(job)
    ctl(cluster, "jobs", "retry", name)
    assert ctl(cluster, "health").returncode == 0
    opt = Trainers(cluster, [[parameter]], job=name, durability="power", resume="must")
    opt.each(lambda o: o.attach())
    opt.close()


def test_a_job_that_its_home_has_lost_does_not_begin_again(start_cluster, tmp_path):
    cluster, name = start_cluster(2), fresh_job()
    make_job(cluster, name)
    end(cluster)
    shutil.rmtree(tmp_path / "cluster-0" / "server-0")
    cluster.restart(0)
    lacks = f'server 0 lacks the files of job "{name}"'
    wait_for(lambda: lacks in try_ctl(cluster, "health").stdout, "server 1 to tell its home")
    parameter = torch.nn.Parameter(torch.ones(1000))
    for resume in ("auto", "must"):
        options = dict(job=name, durability="power", resume=resume)
        trainers = Trainers(cluster, [[parameter]], **options)
        with pytest.raises(ballast.StateLost, match=lacks):
            trainers.each(lambda opt: opt.attach())
    ctl(cluster, "jobs", "delete", name)  # As the text says.
    assert ctl(cluster, "health").returncode == 0
    make_job(cluster, name)


@pytest.mark.parametrize("server", [0, 1])
def test_a_data_directory_that_was_rolled_back_is_state_lost(start_cluster, tmp_path, server):
    cluster, name = start_cluster(2), fresh_job()
    make_job(cluster, name)
    data = tmp_path / "cluster-0" / f"server-{server}"

    def stop() -> None:
        cluster.kill(server, signal.SIGKILL)
        cluster.exit_code(server)

    stop()
    shutil.copytree(data, tmp_path / "older")
    cluster.restart(server)
    parameter = torch.nn.Parameter(torch.ones(1000))
    parameter.grad = torch.ones_like(parameter)
    again = dict(job=name, durability="power", resume="auto")
    trainers = Trainers(cluster, [[parameter]], **again)
    trainers.each(lambda opt: opt.attach())
    trainers.step()
    trainers.step()
    trainers.close()
    stop()
    shutil.rmtree(data)
    shutil.move(tmp_path / "older", data)
    cluster.restart(server)
    said = "is in a later epoch than" if server == 0 else "is at round 2 while another is at 4"
    trainers = Trainers(cluster, [[parameter]], **again)
    with pytest.raises(ballast.StateLost, match=said):
        trainers.each(lambda opt: opt.attach())


def test_a_full_disk_is_named_before_the_store_opens(start_cluster, tmp_path):
    cluster = start_cluster(1)
    make_job(cluster, fresh_job())
    end(cluster)
    data = tmp_path / "cluster-0" / "server-0"
    full = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(data)]
    if subprocess.run(full, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a tmpfs")
    try:
        said = refusal(cluster, code=1)
    finally:
        subprocess.run(["umount", str(data)], check=True)
    assert f"storage.data_dir {data} has" in said and "bytes free" in said
    cluster.restart(0)
    run_small_job(cluster)


def test_a_damaged_store_is_named(start_cluster, tmp_path):
    cluster = start_cluster(1)
    make_job(cluster, fresh_job())
    cluster.strike(0)  # Its log becomes a table.
    run_small_job(cluster)  # It serves.
    end(cluster)
    store = tmp_path / "cluster-0" / "server-0" / "meta"
    tables = list(store.glob("*.sst"))
    assert tables
    for table in tables:
        table.write_bytes(table.read_bytes()[:-100] + bytes(100))
    assert f"metadata store {store}" in refusal(cluster)


def test_the_data_directory_of_another_server_is_refused(start_cluster, tmp_path):
    cluster = start_cluster(2)
    run_small_job(cluster)  # They serve.
    for server in (0, 1):
        cluster.kill(server, signal.SIGKILL)
        cluster.exit_code(server)
    folder = tmp_path / "cluster-0"
    (folder / "server-0").rename(folder / "other")
    (folder / "server-1").rename(folder / "server-0")
    said = refusal(cluster)
    assert "is the data directory of server 1, this is server 0" in said
