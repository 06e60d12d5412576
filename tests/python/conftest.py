"""Fixtures of the Python tests: a clean environment, the fake core, real servers where built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Before torch is imported: the same torch code on machines with and without AVX-512.
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")

REPO = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
for folder in (REPO / "client" / "python", REPO / "tests", HERE):
    sys.path.insert(0, str(folder))

import pytest  # noqa: E402
import torch  # noqa: E402

from ballast import backend, config  # noqa: E402
from ballast.launcher.servers import LaunchError, Servers, find_ballastd  # noqa: E402
from fake_core import FakeCore  # noqa: E402
from serving import wait_until_serving  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No variable of an outer launcher decides a test, and every test counts job names anew."""
    for name in list(os.environ):
        if name.startswith(("BALLAST_", "TORCHELASTIC_")) and not name.startswith("BALLAST_TEST_"):
            if name != "BALLAST_TIME_SCALE":
                monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(config, "_names_given", {})


@pytest.fixture
def fake(monkeypatch):
    """The package over a pure-Python service; BALLAST_ENDPOINTS and BALLAST_JOB are set."""
    core = FakeCore()
    backend.use(core)
    monkeypatch.setenv("BALLAST_ENDPOINTS", "127.0.0.1:1")
    monkeypatch.setenv("BALLAST_JOB", "job")
    yield core
    backend.use(None)


def real_ballastd() -> Path:
    """The built server, or a skip that says what is missing."""
    try:
        backend.core()
    except ImportError as error:
        pytest.skip(f"the extension is not built: {error}")
    try:
        return find_ballastd(os.environ.get("BALLAST_TEST_BALLASTD"), os.environ)
    except LaunchError as error:
        pytest.skip(f"ballastd is not built: {error}")


@pytest.fixture
def start_servers(tmp_path):
    """start_servers(n) -> addresses of n fresh real servers that serve; stopped after the test."""
    binary = real_ballastd()
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
