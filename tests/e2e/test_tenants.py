"""What certificates of other tenants and roles get from a server that trains a tenant's job.

Comes from: pytest. Goes to: dev-ca.sh, ballastd, ballast.torch, ballastctl.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import ballast
from dev_ca import dev_ca
from e2e.cluster import Cluster, fresh_job
from e2e.small_run import Run

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
    """A job of tenant a that has trained."""
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


def test_a_tenant_sees_its_own_jobs_only(cluster, files, run):
    for party, sees in (("operator-a", True), ("viewer-a", True), ("admin", True),
                        ("operator-b", False), ("viewer-b", False)):
        for words in (("jobs", "list"), ("status",)):
            said = ctl(cluster, files, party, *words)
            assert said.returncode == 0, said.stderr
            assert (job_of(run) in said.stdout) == sees, (party, words)


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


def test_a_trainer_of_another_tenant_gets_neither_seat_nor_names(cluster, files, run):
    with pytest.raises(ballast.NameInUse) as refused:
        Run(cluster, job_of(run), 1, resume="auto", **pair(files, "trainer-b"))
    assert str(refused.value).count("tensor") == 0
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
