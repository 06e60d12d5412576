"""Four ranks, two servers: the bytes that each pushes, and how far the loss may drift."""

from __future__ import annotations

import pytest

from e2e import rounding
from e2e.collective_run import Run

WORLD, ROUNDS = 4, 4
# Small, so that each of four ranks is dealt the same number of extents.
EXTENT = 256


def test_four_ranks_push_a_quarter_each_and_stay_within_the_bound_of_rounding(
    start_cluster, zygote, tmp_path
):
    cluster = start_cluster(2)
    runs = {
        collective: Run(cluster, zygote, tmp_path, WORLD, collective, ROUNDS, EXTENT)
        for collective in ("none", "nccl", "gloo")
    }
    for run in runs.values():
        run.finish([])
    bound, _ = rounding.loss_bound(ROUNDS, WORLD)
    loss = {
        collective: rounding.exact_loss(run.weights(), ROUNDS, WORLD)[0].item()
        for collective, run in runs.items()
    }
    whole = [result["up_bytes"] for result in runs["none"].results()]
    for collective in ("nccl", "gloo"):
        for rank, result in enumerate(runs[collective].results()):
            assert result["up_bytes"] / whole[rank] == pytest.approx(1 / WORLD, rel=0.02)
        assert abs(loss[collective] - loss["none"]) <= bound, collective
