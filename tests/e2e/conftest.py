"""Set-up of the end-to-end tests: their marker, and running servers.

Comes from: pytest. Goes to: every test here. Servers are those of build/release, or the binary that
BALLAST_TEST_BALLASTD names; where they are not built, the tests skip and say so.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from e2e.zygote import Zygote
from serving import built_ballastd

# Failure detection takes this many times as long.
PATIENCE = "5"


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def ballastd() -> Path:
    return built_ballastd()


@pytest.fixture(scope="session")
def fake_nccl() -> Path:
    """The folder of a libnccl.so.2 for the host (tests/fakes/nccl)."""
    folder = built_ballastd().parent.parent / "tests" / "nccl"
    assert (folder / "libnccl.so.2").exists(), "build the target fake_nccl"
    return folder


@pytest.fixture(scope="module")
def zygote(ballastd, fake_nccl):
    """Forks trainers; with a module, because it keeps a process with torch."""
    zygote = Zygote(fake_nccl)
    yield zygote
    zygote.stop()


@contextlib.contextmanager
def shared_clusters(binary: Path, folders: pytest.TempPathFactory, **settings: str):
    """get(n): n running servers, which are started when a test asks for them first."""
    running: dict[int, Cluster] = {}

    def get(servers: int) -> Cluster:
        found = running.get(servers)
        if found is not None and not all(found.running()):
            found.stop()  # A test has failed and taken servers along; the next one has others.
            found = None
        if found is None:
            found = Cluster(binary, servers, folders.mktemp(f"servers-{servers}"), **settings)
            running[servers] = found
            found.wait_until_serving()
        return found

    try:
        yield get
    finally:
        for cluster in running.values():
            cluster.stop()


@pytest.fixture(scope="session")
def patient_clusters(ballastd, tmp_path_factory):
    with shared_clusters(ballastd, tmp_path_factory, BALLAST_TIME_SCALE=PATIENCE) as get:
        yield get


@pytest.fixture
def clusters(patient_clusters, monkeypatch):
    """clusters(n): n servers that many tests share, each with jobs of its own.

    They and their trainers give each other up late: a busy machine ends no job.
    """
    monkeypatch.setenv("BALLAST_TIME_SCALE", PATIENCE)
    return patient_clusters


@pytest.fixture(scope="session")
def patient_sharing_clusters(ballastd, tmp_path_factory):
    with shared_clusters(
        ballastd,
        tmp_path_factory,
        BALLAST_TIME_SCALE=PATIENCE,
        BALLAST_STORAGE_SNAPSHOT_DIR=str(tmp_path_factory.mktemp("snapshots")),
    ) as get:
        yield get


@pytest.fixture
def sharing_clusters(patient_sharing_clusters, monkeypatch):
    """As clusters(n), with one directory of snapshots and exports that all the servers see.

    Each test gives its exports names of its own.
    """
    monkeypatch.setenv("BALLAST_TIME_SCALE", PATIENCE)
    return patient_sharing_clusters


@pytest.fixture(scope="session")
def prompt_clusters(ballastd, tmp_path_factory):
    """As clusters(n), with the times of production: for tests of timely notice."""
    with shared_clusters(ballastd, tmp_path_factory) as get:
        yield get


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
