"""Whether servers serve jobs yet, from their admin ports.

Comes from: the fixtures in python/conftest.py and e2e/conftest.py. Goes to: /readyz.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterable

_HANG_S = 60.0


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
