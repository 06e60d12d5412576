"""The socket on which systemd hears a service of Type=notify, and a server's messages there.

Comes from: the tests. Goes to: NOTIFY_SOCKET and WATCHDOG_USEC of a server.
"""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
import time

_HANG_S = 60.0
_numbers = itertools.count(1)


class Supervisor:
    """Listens until it is closed; a context manager.

    abstract: at a name without a file. watchdog_s: how long the server may be silent; nothing here
    ends a silent server.
    """

    def __init__(self, abstract: bool = False, watchdog_s: float = 0.2):
        self._folder = tempfile.TemporaryDirectory(prefix="ballast-notify-")
        name = f"{self._folder.name}/socket"  # pytest's own folders are longer than a name may be.
        if abstract:
            name = f"@ballast-{os.getpid()}-{next(_numbers)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name[1:] if abstract else name)
        self.variables = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}
        self.heard: list[str] = []  # A line each, in order.

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_) -> None:
        self._socket.close()
        self._folder.cleanup()

    def listen(self, for_s: float = 0.0) -> list[str]:
        """Takes the messages so far, and waits for the first one if there are none; returns all
        lines."""
        self._socket.settimeout(for_s)
        try:
            while True:
                self.heard += self._socket.recv(4096).decode().splitlines()
                self._socket.settimeout(0.0)
        except (BlockingIOError, TimeoutError):
            return self.heard

    def await_line(self, beginning: str, times: int = 1) -> None:
        """Returns when this many lines have begun with the prefix since the start."""
        deadline = time.monotonic() + _HANG_S
        while sum(line.startswith(beginning) for line in self.listen(0.05)) < times:
            assert time.monotonic() < deadline, f"no {beginning!r} in {self.heard}"

    def await_beats(self, times: int) -> None:
        """Returns after this many more signs of life."""
        self.await_line("WATCHDOG=1", self.listen().count("WATCHDOG=1") + times)

    def words(self) -> list[str]:
        """The messages, without signs of life."""
        return [line for line in self.listen() if line != "WATCHDOG=1"]
