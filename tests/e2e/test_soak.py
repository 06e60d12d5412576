"""The short form of scripts/soak.sh: each kind of trouble twice; the findings of its check of
trends."""

from __future__ import annotations

import random

import pytest

from e2e.soak import TOLERANCES, soak
from e2e.trend import assert_no_trend, least_leak, rise

RESIDENT = "server 0: resident bytes"


def test_a_job_keeps_its_bits_through_kills_new_certificates_and_floods(ballastd, tmp_path):
    result = soak(ballastd, tmp_path, lambda under: under.cycles == 6)
    print(result)
    assert result["rounds"] == 45


@pytest.mark.long
def test_servers_that_lose_memory_with_each_connection_have_a_trend(ballastd, tmp_path):
    with pytest.raises(AssertionError, match="server 0: resident bytes: the last third"):
        soak(ballastd, tmp_path, lambda under: under.cycles == 60, leak_bytes=256 * 1024)


def warming_up(samples: int) -> list[float]:
    """A process that takes 3 MB more than in its first second, ever slower, with some noise."""
    noise = random.Random(1)
    return [60e6 - 3e6 / (1 + at / 20) + noise.uniform(-1e5, 1e5) for at in range(samples)]


def test_a_process_that_warms_up_has_no_trend():
    for samples in (60, 600, 6000):
        assert_no_trend(RESIDENT, warming_up(samples), TOLERANCES[RESIDENT])


def test_a_process_that_warms_up_and_leaks_has_a_trend():
    for samples in (60, 600, 6000):
        leak = 1.3 * least_leak(samples, TOLERANCES[RESIDENT])
        leaking = [value + at * leak for at, value in enumerate(warming_up(samples))]
        with pytest.raises(AssertionError, match=RESIDENT):
            assert_no_trend(RESIDENT, leaking, TOLERANCES[RESIDENT])


def test_single_samples_and_the_start_do_not_count():
    assert rise([90, 1, 10, 10, 99, 10, 10, 10, 99]) == 0
    assert rise([0, 0, 0, 10, 10, 10, 12, 12, 12]) == 2
