"""State servers that run already, which BALLAST_ENDPOINTS names.

Comes from: ballast.run. In place of launcher.servers; nothing here starts, watches
or ends them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ballast.launcher import process


class GivenServers:
    """What ballast.run asks of Servers; see there."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self.addresses = list(endpoints)
        self.admin_addresses: list[str] = []
        self.children: list[process.Child] = []

    def start(self, environ: Mapping[str, str], interrupted: Callable[[], bool]) -> None:
        """Nothing: they run."""

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Nothing: they are not ours."""

    def restart(self, i: int) -> None:
        raise AssertionError("servers that are not ours do not end")

    def ready(self, i: int) -> bool:
        return True

    def report(self, i: int) -> str:
        return ""
