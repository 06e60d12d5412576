"""collective=: gradients through a gloo process group, each rank pushes and receives its share."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.cluster import HANG_S, Cluster, fresh_job

SCRIPT = Path(__file__).with_name("collective_trainer.py")
# Several processes that import torch take long on a busy machine.
RUN_S = 4 * HANG_S
ROUNDS = 5
# Of the process groups in collective_trainer.train.
GROUP_S = 8


def started(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, arguments)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def results(ranks: list[subprocess.Popen[str]]) -> list[dict]:
    said = [rank.communicate(timeout=RUN_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), [error for _, error in said]
    return [json.loads(out) for out, _ in said]


def bits(cluster: Cluster, world: int, folder: Path) -> list[dict]:
    job = fresh_job("bits")
    endpoints = ",".join(cluster.endpoints)
    return results([started("bits", endpoints, job, r, world, folder) for r in range(world)])


class Training:
    """One job of `world` ranks, started as often as a test needs."""

    def __init__(self, cluster: Cluster, world: int, folder: Path) -> None:
        self._endpoints = ",".join(cluster.endpoints)
        self._job = fresh_job("train")
        self._world = world
        self._folder = folder
        self._times = 0

    def start(self, where: dict[int, str] | None = None) -> list[subprocess.Popen[str]]:
        """where: by rank, as collective_trainer.py takes it."""
        self._times += 1
        folder = self._folder / f"{self._job}-{self._times}"
        folder.mkdir()
        return [
            started(
                "train", self._endpoints, self._job, rank, self._world, folder, ROUNDS,
                (where or {}).get(rank, "-"),
            )
            for rank in range(self._world)
        ]  # fmt: skip

    def finish(self) -> int:
        """The checksum of all ranks' weights after the last round."""
        said = results(self.start())
        assert {result["round"] for result in said} == {ROUNDS}
        (digest,) = {result["digest"] for result in said}
        return digest


def test_two_ranks_have_the_bits_of_the_servers_sum_and_move_half_of_the_bytes(clusters, tmp_path):
    """In 16 bits the sum is rounded once on its way: the other job's sum is, too."""
    for said in bits(clusters(2), 2, tmp_path):
        assert set(said) == {"fp32", "bf16", "fp16"}
        for dtype, of in said.items():
            assert of["bits"] == 0, dtype
            assert of["norms"][0] == of["norms"][1], dtype
            for way in ("payload_up_bytes", "payload_down_bytes"):
                share = of["ours"][way] / of["theirs"][way]
                assert share == pytest.approx(1 / 2, rel=0.02), (dtype, way)


@pytest.fixture(scope="module")
def undisturbed(ballastd, tmp_path_factory) -> int:
    """The weights of two ranks after the last round when nothing is killed: their data is fixed."""
    cluster = Cluster(ballastd, 1, tmp_path_factory.mktemp("undisturbed"))
    try:
        cluster.wait_until_serving()
        return Training(cluster, 2, tmp_path_factory.mktemp("ranks")).finish()
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    "where", ["reduce", *(pytest.param(at, marks=pytest.mark.long) for at in ("gather", "push"))]
)
def test_a_rank_that_is_killed_is_named_and_both_start_again_with_the_same_bits(
    start_cluster, tmp_path, undisturbed, where
):
    training = Training(start_cluster(2), 2, tmp_path)
    ranks = training.start({1: f"{where}:3"})
    killed = ranks[1].wait(RUN_S)
    since = time.monotonic()
    assert killed == -signal.SIGKILL, ranks[1].communicate()[1]
    _, text = ranks[0].communicate(timeout=RUN_S)
    waited = time.monotonic() - since
    assert ranks[0].returncode == 3, text
    assert "TrainerLost: rank 1 of epoch 1 did not arrive within" in text
    assert {"reduce": "in reduce-scatter of bucket", "gather": "in all-gather of bucket",
            "push": "in the push of"}[where] in text  # fmt: skip
    assert "round 3" in text
    assert waited < GROUP_S + HANG_S, "the group's timeout, and what a busy machine takes"
    assert training.finish() == undisturbed


@pytest.mark.long
def test_a_rank_that_hangs_is_named_when_the_groups_timeout_is_over(start_cluster, tmp_path):
    training = Training(start_cluster(1), 2, tmp_path)
    ranks = training.start({1: "stop:2"})
    try:
        _, text = ranks[0].communicate(timeout=RUN_S)
        assert ranks[0].returncode == 3, text
        assert "TrainerLost: rank 1 of epoch 1 did not arrive within" in text
        assert "(in reduce-scatter of bucket 1 of round 2; torch says: " in text
    finally:
        ranks[1].kill()
        ranks[1].communicate()
    training.finish()


@pytest.mark.long
def test_four_ranks_agree_with_themselves_after_a_kill(start_cluster, tmp_path):
    cluster = start_cluster(2)
    undisturbed = Training(cluster, 4, tmp_path).finish()
    training = Training(cluster, 4, tmp_path)
    ranks = training.start({2: "reduce:3"})
    texts = [rank.communicate(timeout=RUN_S)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [3, 3, -signal.SIGKILL, 3], texts
    # Ranks that did not notice within the roll call are named, too.
    named = re.compile(r"TrainerLost: ranks? (\d, )*2(, \d)* of epoch 1 did not arrive")
    assert all(named.search(texts[rank]) for rank in (0, 1, 3)), texts
    assert training.finish() == undisturbed


@pytest.mark.long
def test_four_ranks_push_a_quarter_each(clusters, tmp_path):
    for said in bits(clusters(2), 4, tmp_path):
        for dtype, of in said.items():
            for way in ("payload_up_bytes", "payload_down_bytes"):
                share = of["ours"][way] / of["theirs"][way]
                assert share == pytest.approx(1 / 4, rel=0.02), (dtype, way)
