"""Set-up of the end-to-end tests: paths, the torch kernels compared with, and running servers.

Comes from: pytest. Goes to: every test here. Servers are those of build/release, or the binary that
BALLAST_TEST_BALLASTD names; where they are not built, the tests skip and say so.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Before torch is imported: the bit-for-bit comparisons are defined for this choice.
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "python"))

import pytest  # noqa: E402
import torch  # noqa: E402

from ballast import backend  # noqa: E402
from ballast.launcher.servers import LaunchError, find_ballastd  # noqa: E402

from e2e.cluster import Cluster  # noqa: E402

torch.set_num_threads(1)


def pytest_configure(config):
    config.addinivalue_line("markers", "e2e: needs running servers; test.sh --quick leaves it out")


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def ballastd() -> Path:
    try:
        backend.core()
        return find_ballastd(os.environ.get("BALLAST_TEST_BALLASTD"), os.environ)
    except ImportError as error:
        pytest.skip(f"the extension is not built: {error}")
    except LaunchError as error:
        pytest.skip(f"ballastd is not built: {error}")


@pytest.fixture(scope="module")
def clusters(ballastd, tmp_path_factory):
    """clusters(n): n servers that all tests of the module share, each with jobs of its own."""
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
