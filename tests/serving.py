"""The servers that tests run: where the binary is, and whether started ones serve jobs yet.

Comes from: the fixtures in python/conftest.py and e2e/conftest.py. Goes to: /readyz.
"""

from __future__ import annotations

import importlib.util
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pytest

from ballast import backend
from ballast.launcher.servers import LaunchError, find_ballastd

REPO = Path(__file__).resolve().parents[1]
_HANG_S = 60.0


def built_ballastd() -> Path:
    """The server of build/release, or the one that BALLAST_TEST_BALLASTD names.

    Skips the test, and says what is missing, where it or the client's extension is not built. An
    existing extension that cannot be imported is an error.
    """
    if importlib.util.find_spec("ballast._core") is None:
        pytest.skip("the extension is not built")
    backend.core()
    try:
        return find_ballastd(os.environ.get("BALLAST_TEST_BALLASTD"), os.environ)
    except LaunchError as error:
        pytest.skip(f"ballastd is not built: {error}")


def serves(admin: str) -> bool:
    """Whether the server with this admin address knows its peers and has read its jobs."""
    try:
        with urllib.request.urlopen(f"http://{admin}/readyz", timeout=_HANG_S):
            return True
    except urllib.error.HTTPError:
        return False


def wait_until_serving(admins: Iterable[str]) -> None:
    """Trainers wait by themselves; a command is refused, and a short timeout of a test is over."""
    for admin in admins:
        deadline = time.monotonic() + _HANG_S
        while not serves(admin):
            assert time.monotonic() < deadline, f"waited in vain for {admin} to serve jobs"
            time.sleep(0.02)
