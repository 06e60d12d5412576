"""Fixtures of the Python tests: a clean environment, the fake core, real servers where built."""

from __future__ import annotations

import os
import sys
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
    """No variable of an outer launcher decides a test, and every test counts job names anew."""
    for name in list(os.environ):
        if name.startswith(("BALLAST_", "TORCHELASTIC_")) and not name.startswith("BALLAST_TEST_"):
            if name != "BALLAST_TIME_SCALE":
                monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
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


@pytest.fixture
def start_servers(tmp_path):
    """start_servers(n) -> addresses of n fresh real servers that serve; stopped after the test."""
    binary = built_ballastd()
    started = []

    def start(count: int) -> list[str]:
        servers = Servers(binary, count, tmp_path / f"servers-{len(started)}", None)
        (tmp_path / f"servers-{len(started)}").mkdir()
        started.append(servers)
        servers.start(os.environ, lambda: False)
        wait_until_serving(servers.admin_addresses)
        return servers.addresses

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
