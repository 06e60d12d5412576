"""One ballastd process with the arguments and variables of a deployment, and nothing else.

Comes from: conftest.py. Goes to: /healthz, /readyz and /metrics of its admin port.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

_HANG_S = 60.0
# A deployment's network settings, on loopback and free ports.
ON_LOOPBACK = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
               "--set", "listen.advertise_address=")


class Server:
    """A process that listens; its folder goes with it. stop() or kill() it."""

    def __init__(self, binary: Path, arguments: Sequence[str], variables: Mapping[str, str]):
        self._folder = tempfile.TemporaryDirectory(prefix="ballast-deploy-")
        folder = Path(self._folder.name)
        ready = folder / "ready.json"
        self._log = (folder / "log").open("w+b")
        self._process = subprocess.Popen(
            [binary, *arguments, "--ready-file", ready], stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=self._log, env=dict(variables), cwd=folder)
        try:
            facts = self._await(ready)
        except AssertionError:
            self.kill()
            raise
        self.id, self.address, self.admin = facts["id"], facts["address"], facts["admin"]

    def _await(self, ready: Path) -> dict:
        deadline = time.monotonic() + _HANG_S
        while not ready.exists():
            assert self._process.poll() is None, f"ballastd has ended: {self.log()}"
            assert time.monotonic() < deadline, f"ballastd does not listen: {self.log()}"
            time.sleep(0.01)
        return json.loads(ready.read_text())

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def get(self, path: str, token: str = "") -> tuple[int, str]:
        """Code and text of a page of the admin port. token: of admin.token_file; "": none."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        asked = urllib.request.Request(f"http://{self.admin}{path}", headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=_HANG_S) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def wait_until_serving(self) -> None:
        deadline = time.monotonic() + _HANG_S
        while self.get("/readyz")[0] != 200:
            assert time.monotonic() < deadline, f"waited in vain: {self.get('/readyz')[1]}"
            time.sleep(0.02)

    def stop(self, within_s: float, signum: int = signal.SIGTERM) -> int:
        """Asks for the end; the exit code. subprocess.TimeoutExpired if it takes longer."""
        self._process.send_signal(signum)
        return self._process.wait(within_s)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()
