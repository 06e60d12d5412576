"""Set-up of the end-to-end tests: their marker, and running servers.

Comes from: pytest. Goes to: every test here. Servers are those of build/release, or the binary that
BALLAST_TEST_BALLASTD names; where they are not built, the tests skip and say so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import Cluster
from serving import built_ballastd


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def ballastd() -> Path:
    return built_ballastd()


@pytest.fixture(scope="session")
def clusters(ballastd, tmp_path_factory):
    """clusters(n): n servers that many tests share, each with jobs of its own."""
    running: dict[int, Cluster] = {}

    def get(servers: int) -> Cluster:
        if servers not in running:
            folder = tmp_path_factory.mktemp(f"servers-{servers}")
            running[servers] = Cluster(ballastd, servers, folder)
            running[servers].wait_until_serving()
        return running[servers]

    yield get
    for cluster in running.values():
        cluster.stop()


@pytest.fixture
def start_cluster(ballastd, tmp_path):
    """start_cluster(n, **settings): servers of this test alone, which it may break."""
    started: list[Cluster] = []

    def start(servers: int, **settings: str) -> Cluster:
        folder = tmp_path / f"cluster-{len(started)}"
        folder.mkdir()
        started.append(Cluster(ballastd, servers, folder, **settings))
        started[-1].wait_until_serving()
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()
