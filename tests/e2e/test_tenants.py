"""Access of other tenants' and roles' certificates to a server that trains a tenant's job.

Comes from: pytest. Goes to: dev-ca.sh, ballastd, ballast.torch, ballastctl.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ballast
from ballast.control import Control
from ballast.security import Security
from dev_ca import dev_ca
from e2e.cluster import Cluster, fresh_job
from e2e.small_run import Run, assert_equal

NOT_FOUND, NOT_PERMITTED = 4, 7


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    return dev_ca(tmp_path_factory.mktemp("ca") / "pairs", 2, "--tenant", "a", "--tenant", "b")


@pytest.fixture(scope="module")
def cluster(ballastd, tmp_path_factory, files) -> Iterator[Cluster]:
    secured = Cluster(ballastd, 2, tmp_path_factory.mktemp("data"), certificates=files)
    try:
        secured.wait_until_serving()
        yield secured
    finally:
        secured.stop()


def pair(files: Path, party: str) -> dict[str, str]:
    return {
        "tls_ca": str(files / "ca.pem"),
        "tls_cert": str(files / f"{party}.pem"),
        "tls_key": str(files / f"{party}.key"),
    }


@pytest.fixture
def run(cluster, files) -> Iterator[Run]:
    """A job of tenant a after training."""
    made = Run(cluster, fresh_job(), 1, **pair(files, "trainer-a"))
    made.step(2)
    yield made
    made.close()


def ctl(cluster: Cluster, files: Path, party: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **{f"BALLAST_{k.upper()}": v for k, v in pair(files, party).items()}}
    command = [cluster.binary.parent / "ballastctl", *words, "--endpoint", cluster.endpoints[0]]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def job_of(run: Run) -> str:
    return run.trainers.optimizers[0].job


def control(cluster: Cluster, files: Path, party: str) -> Control:
    paths = pair(files, party)
    return Control(cluster.endpoints, 10.0, security=Security(**paths))


@pytest.fixture(scope="module")
def saved(cluster, files) -> str:
    """The name of a job of tenant a that rests, of its export, and its snapshot is "best"."""
    made = Run(cluster, fresh_job(), 1, **pair(files, "trainer-a"))
    made.step(1)
    made.trainers.optimizers[0].snapshot("best")
    made.close()
    job = job_of(made)
    said = ctl(cluster, files, "trainer-a", "export", job, "--name", job)
    assert said.returncode == 0, said.stderr
    return job


def test_a_tenant_sees_its_own_jobs_only(cluster, files, run):
    for party, sees in (("operator-a", True), ("viewer-a", True), ("admin", True),
                        ("operator-b", False), ("viewer-b", False)):
        for words in (("jobs", "list"), ("status",)):
            said = ctl(cluster, files, party, *words)
            assert said.returncode == 0, said.stderr
            assert (job_of(run) in said.stdout) == sees, (party, words)


def test_a_trainer_saves_loads_and_exports_what_its_tenant_has(cluster, files, run):
    job = job_of(run)
    before = run.state()
    run.trainers.optimizers[0].snapshot("best")
    run.step(1)
    servers = control(cluster, files, "trainer-a")
    assert [one["name"] for one in servers.snapshots(job)] == ["best"]
    servers.fork(job, "best", f"{job}-again", 1)
    again = Run(cluster, f"{job}-again", 1, resume="must", **pair(files, "trainer-a"))
    assert_equal(again.state(), before)
    again.close()
    for words in (("export", job, "--name", f"{job}-out", "--state"),
                  ("import", f"{job}-out", "--as", f"{job}-in"), ("jobs", "delete", f"{job}-in"),
                  ("snapshot", "verify", job, "best"), ("snapshot", "delete", job, "best")):
        said = ctl(cluster, files, "trainer-a", *words)
        assert said.returncode == 0, (words, said.stderr)
    assert servers.snapshots(job) == []


def test_save_checkpoint_and_load_need_no_more_than_a_trainer(
    cluster, files, tmp_path, monkeypatch
):
    import ballast.deepspeed as deepspeed

    for name, path in pair(files, "trainer-a").items():
        monkeypatch.setenv(f"BALLAST_{name.upper()}", path)
    monkeypatch.setenv("BALLAST_ENDPOINTS", ",".join(cluster.endpoints))
    monkeypatch.setenv("BALLAST_JOB", fresh_job("engine"))
    torch.manual_seed(0)
    config = {"train_micro_batch_size_per_gpu": 4,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}  # fmt: skip
    engine = deepspeed.initialize(model=torch.nn.Linear(16, 8), config=config)[0]

    def round_of(i: int) -> list[torch.Tensor]:
        batch = torch.randn(4, 16, generator=torch.Generator().manual_seed(i))
        engine.backward(engine(batch).square().mean())
        engine.step()
        return [p.detach().clone() for p in engine.module.parameters()]

    round_of(0)
    engine.save_checkpoint(tmp_path)
    after = round_of(1)
    jobs = [engine.optimizer.job]
    for _ in range(2):
        engine.load_checkpoint(tmp_path)
        jobs.append(engine.optimizer.job)
        assert all(map(torch.equal, round_of(1), after))
    # The job of the first load went with the second one.
    there = {job["name"] for job in control(cluster, files, "trainer-a").jobs()}
    assert there & set(jobs) == {jobs[0], jobs[-1]}
    engine.optimizer.close()


def test_two_tenants_have_jobs_snapshots_and_exports_of_one_name(cluster, files, run):
    job = job_of(run)
    theirs = Run(cluster, job, 1, **pair(files, "trainer-b"))
    theirs.step(1, seed=7)
    for one, party in ((run, "trainer-a"), (theirs, "trainer-b")):
        one.trainers.optimizers[0].snapshot("best")
        said = ctl(cluster, files, party, "export", job, "--snapshot", "best", "--name", job)
        assert said.returncode == 0, said.stderr
        (found,) = control(cluster, files, party).snapshots(job)
        assert found["round"] == one.round + 1, party  # the next one
        series = f'ballast_rounds_total{{tenant="{party[-1]}",run="{job}",result="committed"}}'
        assert f"\n{series} {one.round}\n" in cluster.get(0, "/metrics")
    said = ctl(cluster, files, "operator-b", "snapshot", "delete", job, "best")
    assert said.returncode == 0, said.stderr
    assert control(cluster, files, "trainer-b").snapshots("") == []
    assert len(control(cluster, files, "trainer-a").snapshots(job)) == 1
    theirs.close()
    assert ctl(cluster, files, "operator-b", "jobs", "delete", job).returncode == 0
    run.step(1)


@pytest.mark.parametrize("words", [
    ("snapshot", "create", "JOB", "more"), ("snapshot", "verify", "JOB", "best"),
    ("snapshot", "delete", "JOB", "best"), ("snapshot", "show", "JOB", "best"),
    ("snapshot", "restore", "JOB", "best", "--as", "stolen"),
    ("snapshot", "fork", "JOB", "best", "--as", "stolen"),
    ("export", "JOB", "--name", "stolen"), ("export", "JOB", "--snapshot", "best", "--name", "s"),
    ("import", "EXPORT", "--as", "stolen"), ("jobs", "delete", "JOB", "--force"),
], ids=lambda words: "-".join(words[:2]))  # fmt: skip
def test_names_of_another_tenant_are_refused_like_missing_ones(cluster, files, saved, words):
    """`saved`: a job of tenant a with a snapshot "best" and an export, both of its name."""
    said = []
    for name in (saved, "nosuch"):
        put = [name if word in ("JOB", "EXPORT") else word for word in words]
        refused = ctl(cluster, files, "operator-b", *put)
        assert refused.returncode == NOT_FOUND, refused.stderr + refused.stdout
        said.append(refused.stderr.replace(name, "NAME"))
    assert said[0] == said[1]
    assert len(control(cluster, files, "trainer-a").snapshots(saved)) == 1
    listed = ctl(cluster, files, "viewer-b", "snapshot", "list")
    assert listed.returncode == 0, listed.stderr
    assert saved not in listed.stdout


def test_an_admin_names_the_tenant(cluster, files, saved):
    missing = ctl(cluster, files, "admin", "snapshot", "verify", saved, "best")
    assert missing.returncode == NOT_FOUND, missing.stderr
    for words in (("snapshot", "verify", saved, "best"), ("snapshot", "list", saved)):
        said = ctl(cluster, files, "admin", *words, "--tenant", "a")
        assert said.returncode == 0, said.stderr
    # A list without a tenant is of all, and says whose each is.
    listed = ctl(cluster, files, "admin", "snapshot", "list", "-o", "json").stdout
    shown = json.loads(listed)["snapshots"]
    assert [one["tenant"] for one in shown if one["job"] == saved] == ["a"]
    refused = ctl(cluster, files, "operator-b", "snapshot", "list", "--tenant", "a")
    assert refused.returncode == NOT_PERMITTED, refused.stderr


def test_a_job_of_another_tenant_is_refused_as_one_that_is_not_there(cluster, files, run):
    foreign = ctl(cluster, files, "operator-b", "jobs", "delete", job_of(run), "--force")
    missing = ctl(cluster, files, "operator-b", "jobs", "delete", "nosuchjob", "--force")
    assert foreign.returncode == missing.returncode == NOT_FOUND, foreign.stderr
    assert foreign.stderr.replace(job_of(run), "nosuchjob") == missing.stderr
    run.step(1)


@pytest.mark.parametrize("party", ["trainer-a", "trainer-b", "viewer-a", "server-1"])
def test_a_role_that_may_not_delete_is_not_permitted(cluster, files, run, party):
    said = ctl(cluster, files, party, "jobs", "delete", job_of(run), "--force")
    assert said.returncode == NOT_PERMITTED, said.stderr + said.stdout
    run.step(1)


@pytest.mark.parametrize("command", ["health", "tenants"])
def test_a_role_that_may_not_ask_reads_that_and_not_that_nothing_answers(cluster, files, command):
    said = ctl(cluster, files, "server-1", command)
    assert said.returncode == NOT_PERMITTED, said.stderr + said.stdout
    assert "not permitted" in said.stdout
    assert "does not answer" not in said.stdout
    assert "no tenant uses anything" not in said.stdout


def test_a_trainer_of_another_tenant_resumes_nothing(cluster, files, run):
    said = []
    for job in (job_of(run), "nosuchjob"):
        with pytest.raises(ballast.BallastError) as refused:
            Run(cluster, job, 1, resume="must", **pair(files, "trainer-b"))
        said.append(str(refused.value).replace(job, "nosuchjob"))
    assert said[0] == said[1]
    run.step(1)
    assert run.round == 3


def test_what_was_refused_and_ordered_is_in_the_audit_log(cluster, files):
    run = Run(cluster, fresh_job(), 1, **pair(files, "trainer-a"))
    run.step(1)
    job = job_of(run)
    ctl(cluster, files, "viewer-b", "jobs", "delete", job, "--force")
    run.close()
    assert ctl(cluster, files, "operator-a", "jobs", "delete", job, "--force").returncode == 0
    audit = [line for line in cluster.log(0).splitlines() if '"audit"' in line]
    refused = [line for line in audit if "tenant/b/viewer" in line and '"refused"' in line]
    ordered = [line for line in audit if "tenant/a/operator" in line and job in line]
    assert any("DeleteJob" in line for line in refused), audit[-5:]
    assert any("DeleteJob" in line for line in ordered), audit[-5:]
