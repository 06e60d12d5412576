"""The short form of scripts/load.sh: a crowd of idle strangers and garbage next to a neighbour."""

from __future__ import annotations

import pytest

from e2e.load import CONNECTION_BYTES, measure, measure_shape
from e2e.load_shapes import SHAPES, SHORT, Stage
from e2e.one_server import OneServer


def test_jobs_are_unaffected_by_many_unauthenticated_clients(ballastd, tmp_path):
    with OneServer(ballastd, tmp_path) as server:
        result = measure(server, connections=500, jobs=3)
        print(result)
        assert server.process.poll() is None
    assert result["connections_kept"] == 500
    assert result["garbage_refused"] > 0
    most = 1.10 * result["resident_before_bytes"] + 500 * CONNECTION_BYTES
    assert result["resident_most_bytes"] <= most


@pytest.mark.parametrize("shape", SHAPES)
def test_jobs_are_unaffected_by_each_shape_of_load_with_tls(ballastd, tmp_path, shape):
    stage = Stage(ballastd, tmp_path)
    with stage.server:
        print(measure_shape(stage, shape, SHORT, jobs=2))
