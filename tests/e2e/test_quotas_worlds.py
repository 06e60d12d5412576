"""A variable world that grows under a quota: the text of the refusal, and the counts.

Comes from: pytest. Goes to: ballastd with a quota file, ballast.torch, ballastctl.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ballast
import ballast.torch as bt
from e2e.cluster import HANG_S, SMALL, fresh_job
from e2e.small_run import Run, parameters
from e2e.test_quotas import Limited

GROWS = {"variable_world": True, "resume": "auto"}


@pytest.fixture
def limited(ballastd, tmp_path) -> Iterator[Limited]:
    limited = Limited(ballastd, tmp_path)
    with limited.server:
        yield limited
    limited.server.process.kill()
    limited.server.process.wait(60)


def newcomer(limited: Limited, run: Run) -> bt.AdamW:
    """A process that asks for a third seat of a job of two trainers."""
    options = {**SMALL, **GROWS, "durability": "process", "lr": 0.01, "attach_timeout": HANG_S}
    return bt.AdamW(
        parameters(), rank=2, world_size=3, endpoints=limited.server.endpoints,
        job=run.trainers.job, **options,
    )  # fmt: skip


def test_a_trainer_beyond_the_quota_hears_both_numbers_and_the_others_continue(limited):
    limited.allow("tenants: {default: {seats: 2}}\n", "seats", 2)
    run = Run(limited.server, fresh_job(), 2, **GROWS)
    run.step(1)
    before = limited.use()
    with pytest.raises(ballast.OverQuota) as refused:
        newcomer(limited, run).attach()
    assert refused.value.reason == "OVER_QUOTA"
    assert 'tenant "default" uses 2 of 2 seats that it may use at server 0' in str(refused.value)
    assert "and this takes 1 more" in str(refused.value)
    assert limited.use() == before
    run.step(1)
    limited.allow("tenants: {default: {seats: 3}}\n", "seats", 3)
    third = newcomer(limited, run)
    third.attach()
    assert limited.use()["seats"] == {"used": 3, "allowed": 3}
    third.close()
    run.trainers.abandon()
