"""Set-up of the tests of deploy/: the server that the files there start, and the programs that
render them.

Comes from: pytest. Goes to: every test here. A missing tool is a failure; scripts/setup.sh brings
all of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.packages import Packages
from deploy.server import Server
from serving import built_ballastd


@pytest.fixture(scope="session")
def ballastd() -> Path:
    return built_ballastd()


@pytest.fixture
def start_program():
    """start_program(binary, arguments, variables) -> a running Server; killed after the test."""
    started: list[Server] = []

    def start(binary: Path, arguments: Sequence[str], **variables: str) -> Server:
        started.append(Server(binary, arguments, variables))
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def start_server(ballastd, start_program):
    """start_server(arguments, variables) -> a running ballastd; killed after the test."""
    def start(*arguments: str, **variables: str) -> Server:
        return start_program(ballastd, arguments, **variables)

    return start


@pytest.fixture(scope="session")
def packages(ballastd, tmp_path_factory) -> Packages:
    """The packages that scripts/package.sh builds. All workers of this run of pytest share it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "packages"
    folder.mkdir(exist_ok=True)
    return Packages(folder)
