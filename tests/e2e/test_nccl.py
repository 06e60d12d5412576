"""collective="nccl" over the fake NCCL: bits, and ranks killed in each of its calls."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import HANG_S, Cluster, fresh_job, wait_for

SCRIPT = Path(__file__).with_name("nccl_trainer.py")
RUN_S = 4 * HANG_S
ROUNDS = 4
# How long a rank waits for another; a killed one is noticed at once.
TIMEOUT_S = 20


def started(fake: Path, plan: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, arguments)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={
            **os.environ, "OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": str(fake), "FAKE_NCCL": plan,
            "BALLAST_NCCL_ON_HOST": "1", "BALLAST_COLLECTIVE_TIMEOUT": str(TIMEOUT_S),
        },
    )  # fmt: skip


def results(ranks: list[subprocess.Popen[str]]) -> list[dict]:
    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as threads:

        def read(rank: subprocess.Popen[str]) -> tuple[str, str]:
            said = rank.communicate(timeout=RUN_S)
            if rank.returncode != 0:  # The others would wait for it.
                for other in ranks:
                    other.kill()
            return said

        said = list(threads.map(read, ranks))
    texts = [error for _, error in said]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(texts)
    return [json.loads(out) for out, _ in said]


def test_two_ranks_have_the_bits_of_a_gloo_group(clusters, fake_nccl, tmp_path):
    endpoints, job = ",".join(clusters(2).endpoints), fresh_job("nccl")
    ranks = [
        started(fake_nccl, "", "bits", endpoints, job, rank, 2, tmp_path) for rank in range(2)
    ]
    for said in results(ranks):
        assert said == {"fp32": 0, "bf16": 0, "fp16": 0}


def train(
    cluster: Cluster, fake: Path, folder: Path, plan: str = "", told: bool = False
) -> list[dict]:
    """Two ranks, the second of which is restarted after a kill; returns both outputs. told: the
    first has to miss it before, for the home can name only a rank silent for a while."""
    endpoints, job = ",".join(cluster.endpoints), fresh_job("nccl")

    def start(rank: int, with_plan: str) -> subprocess.Popen[str]:
        return started(fake, with_plan, "train", endpoints, job, rank, 2, folder, ROUNDS)

    ranks = [start(rank, plan) for rank in range(2)]
    if plan:
        _, text = ranks[1].communicate(timeout=RUN_S)
        assert ranks[1].returncode == -signal.SIGKILL, text
        if told:
            wait_for((folder / "told-0").exists, "rank 0 to miss rank 1")
        ranks[1] = start(1, "notice")
    return results(ranks)


@pytest.fixture(scope="module")
def undisturbed(ballastd, fake_nccl, tmp_path_factory) -> int:
    """The checksum that two ranks have when nothing is killed."""
    cluster = Cluster(ballastd, 1, tmp_path_factory.mktemp("undisturbed"))
    try:
        cluster.wait_until_serving()
        said = train(cluster, fake_nccl, tmp_path_factory.mktemp("ranks"))
        assert not any(of["lost"] or of["warned"] for of in said)
        (digest,) = {of["digest"] for of in said}
        return digest
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    ("kill", "kept", "where"),
    [
        ("reduce_scatter:4", "lost", "(in reduce-scatter of bucket "),
        pytest.param(
            "all_gather:4", "warned", "(in all-gather of bucket ", marks=pytest.mark.long
        ),
        # The survivor waits in the init, and takes the next epoch when it begins.
        pytest.param("init:1", "", "", marks=pytest.mark.long),
    ],
)
def test_training_goes_on_in_the_next_epoch_when_a_rank_is_killed(
    start_cluster, fake_nccl, tmp_path, undisturbed, kill, kept, where
):
    left, again = train(start_cluster(1), fake_nccl, tmp_path, f"notice,1:{kill}:die", bool(kept))
    assert left["round"] == again["round"] == ROUNDS
    assert {said["digest"] for said in (left, again)} == {undisturbed}
    if kept:
        (text,) = left[kept]
        assert text.startswith("rank 1 of epoch 1 did not arrive within"), text
        assert where in text and "NCCL 2.22.3 says: " in text, text
    assert not again["lost"]
