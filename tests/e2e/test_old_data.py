"""A data directory, a snapshot and an export from before names belonged to tenants.

golden/data_before_tenants.tar.xz was made by ballastd of commit acabf724 from job "gpt": one
server, durability process, AdamW with lr=0.01, parameters of 100 and 33 elements from
torch.Generator().manual_seed(1), three rounds with 0.25 + 0.1 * p as gradient, a snapshot "before",
and `export gpt --name out --state`. Comes from: pytest. Goes to: ballastd.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch

from e2e.ballastctl import ctl, listed, snapshots
from e2e.cluster import Cluster, Trainers, run_small_job

GOLDEN = Path(__file__).with_name("golden") / "data_before_tenants.tar.xz"


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(n, generator=generator)) for n in (100, 33)]


def expected() -> list[torch.Tensor]:
    """The weights after the three rounds, by torch."""
    ps = parameters()
    adamw = torch.optim.AdamW(ps, lr=0.01, fused=True)
    for _ in range(3):
        for p in ps:
            p.grad = 0.25 + 0.1 * p.detach()
        adamw.step()
    return [p.detach() for p in ps]


@pytest.fixture
def cluster(ballastd, tmp_path):
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path)
    started = Cluster(ballastd, 1, tmp_path)
    try:
        started.wait_until_serving()
        yield started
    finally:
        started.stop()


def test_what_was_stored_before_tenants_opens_as_that_of_default(cluster):
    (one,) = listed(cluster)
    assert (one["job"], one["name"], one["tenant"]) == ("gpt", "before", "default")
    snapshots(cluster, "restore", "gpt", "before", "--as", "restored")
    snapshots(cluster, "fork", "gpt", "before", "--as", "forked")
    ctl(cluster, "import", "out", "--as", "imported")
    for job in ("gpt", "restored", "forked", "imported"):
        ps = [torch.nn.Parameter(torch.zeros(n)) for n in (100, 33)]
        again = Trainers(cluster, [ps], job=job, durability="process", lr=0.01, resume="must")
        again.each(lambda opt: opt.attach())
        assert again.optimizers[0].round == 3
        for p, want in zip(ps, expected(), strict=True):
            assert torch.equal(p.detach(), want), job
        again.close()
    ctl(cluster, "jobs", "delete", "gpt")
    run_small_job(cluster)
