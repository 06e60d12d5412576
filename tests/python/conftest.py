"""Fixtures of the Python tests: a clean environment, the fake core, real servers where built."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ballast import backend, job_name  # noqa: E402
from ballast.launcher.servers import Servers  # noqa: E402
from fake_core import FakeCore  # noqa: E402
from launching import Launcher, gone  # noqa: E402
from serving import built_ballastd, wait_until_serving  # noqa: E402


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No variable of an outer launcher decides a test, and every test counts job names from the
    start."""
    for name in list(os.environ):
        if name.startswith(("BALLAST_", "TORCHELASTIC_")) and not name.startswith("BALLAST_TEST_"):
            if name != "BALLAST_TIME_SCALE":
                monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                 "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(job_name, "_names_given", {})


@pytest.fixture
def fake(monkeypatch):
    """The package over a pure-Python service; BALLAST_ENDPOINTS and BALLAST_JOB are set."""
    core = FakeCore()
    backend.use(core)
    monkeypatch.setenv("BALLAST_ENDPOINTS", "127.0.0.1:1")
    monkeypatch.setenv("BALLAST_JOB", "job")
    yield core
    backend.use(None)


def started_servers(folder: Path, count: int, environ: Mapping[str, str]) -> Servers:
    """`count` real servers that serve, with their data below `folder`, which is made."""
    folder.mkdir()
    servers = Servers(built_ballastd(), count, folder, None)
    servers.start(environ, lambda: False)
    wait_until_serving(servers.admin_addresses)
    return servers


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory):
    """shared_servers(n) -> addresses of n real servers that tests share, each with its own jobs."""
    running: dict[int, Servers] = {}

    def get(count: int) -> list[str]:
        if count not in running:
            # Jobs of earlier tests go quickly: a server holds a limited number.
            environ = {**os.environ, "BALLAST_TIMING_JOB_TTL": "1s"}
            folder = tmp_path_factory.mktemp("shared") / "servers"
            running[count] = started_servers(folder, count, environ)
        return running[count].addresses

    yield get
    for servers in running.values():
        servers.stop()


@pytest.fixture
def start_servers(tmp_path):
    """start_servers(n) -> addresses of n fresh real servers that serve; stopped after the test."""
    started: list[Servers] = []

    def start(count: int) -> list[str]:
        folder = tmp_path / f"servers-{len(started)}"
        started.append(started_servers(folder, count, os.environ))
        return started[-1].addresses

    yield start
    for servers in started:
        servers.stop()


@pytest.fixture
def launcher(tmp_path):
    """ballast-run over a fake ballastd; nothing of it is left after the test."""
    launcher = Launcher(tmp_path)
    yield launcher
    assert all(gone(pid) for pid in launcher.server_pids())
    assert not list(launcher.temporary.glob("ballast-run-*"))
