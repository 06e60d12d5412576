"""The behaviour of every collective of ballast.torch: a process group of torch, and NCCL (a fake).

The cases are those of tests/client/collective/conformance_test.cc, which has threads and NCCL.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import HANG_S
from serving import built_ballastd

SCRIPT = Path(__file__).with_name("collective_calls.py")
WORLD = 2


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> list[dict]:
    """Each rank's report on both collectives: one pair of processes for all tests."""
    fake = built_ballastd().parent.parent / "tests" / "nccl"
    assert (fake / "libnccl.so.2").exists(), "build the target fake_nccl"
    environ = {
        **os.environ, "OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": str(fake), "FAKE_NCCL": "notice",
        "BALLAST_NCCL_ON_HOST": "1",
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("calls")
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), str(WORLD), folder],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ,
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        texts = [rank.communicate(timeout=4 * HANG_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * WORLD, [error for _, error in texts]
    return [json.loads(out) for out, _ in texts]


@pytest.mark.parametrize("collective", ["torch", "nccl"])
def test_sums_copies_and_agreements_are_those_of_every_collective(said, collective):
    passed = [of[collective]["passed"] for of in said]
    assert passed[0] == passed[1]
    assert len(passed[0]) == 6


@pytest.mark.parametrize("collective", ["torch", "nccl"])
def test_a_rank_that_ends_is_lost_with_epoch_call_bucket_and_round(said, collective):
    text = said[0][collective]["lost"]
    assert "rank 1 of epoch 12 did not arrive within" in text
    assert "in reduce-scatter of bucket 7 of round 1" in text
    assert "The round was not applied; nothing is lost" in text
