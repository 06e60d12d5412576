"""Set-up of the tests of deploy/: the server that the files there start, and what renders them.

Comes from: pytest. Goes to: every test here. A missing tool is a failure; scripts/setup.sh brings
all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.server import Server
from serving import built_ballastd


@pytest.fixture(scope="session")
def ballastd() -> Path:
    return built_ballastd()


@pytest.fixture
def start_server(ballastd):
    """start_server(arguments, variables) -> a running Server; killed after the test."""
    started: list[Server] = []

    def start(*arguments: str, **variables: str) -> Server:
        started.append(Server(ballastd, arguments, variables))
        return started[-1]

    yield start
    for server in started:
        server.kill()
