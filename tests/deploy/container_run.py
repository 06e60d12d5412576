"""A container without a container engine: bwrap gives the image's root a user and namespaces.

Comes from: test_packages_image.py. Goes to: ballastd in the image, as process 1 of its namespace,
as user 65532, on a root that nothing can write to; its network is the machine's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from deploy.packages import program
from deploy.server import ON_LOOPBACK

USER = 65532
_HANG_S = 60.0


def entered(rootfs: Path, *arguments: str | Path) -> list[str]:
    """The beginning of a command in the image; `arguments` are further ones of bwrap."""
    return [str(program("bwrap")), "--ro-bind", str(rootfs), "/", "--proc", "/proc", "--dev",
            "/dev", *map(str, arguments), "--unshare-user", "--unshare-pid", "--unshare-ipc",
            "--uid", str(USER), "--gid", str(USER), "--as-pid-1", "--die-with-parent", "--clearenv"]


def _as_user() -> dict:
    """Options of Popen: bwrap itself has no rights, where this process could give it some."""
    if os.geteuid() != 0:
        return {}
    return {"user": USER, "group": USER, "extra_groups": []}


class Container:
    """A running server on /data. end() or close() it."""

    def __init__(self, rootfs: Path, data: Path):
        ready = data / "ready.json"
        ready.unlink(missing_ok=True)
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [*entered(rootfs, "--bind", data, "/data", "--info-fd", str(write)),
             "/usr/bin/ballastd", *ON_LOOPBACK, "--data-dir", "/data",
             "--ready-file", "/data/ready.json"],
            pass_fds=[write], env={}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, **_as_user())
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read()
        assert said, self._process.communicate(timeout=_HANG_S)[0]
        self._server = json.loads(said)["child-pid"]
        facts = self._await(ready)
        self.address, self._admin = facts["address"], facts["admin"]

    def _await(self, ready: Path) -> dict:
        deadline = time.monotonic() + _HANG_S
        while not ready.exists():
            assert self._process.poll() is None, self._process.communicate()[0]
            if time.monotonic() > deadline:
                self.close()
                raise AssertionError("ballastd does not listen")
            time.sleep(0.01)
        return json.loads(ready.read_text())

    def ids(self) -> set[int]:
        """The user and group numbers of the server, as this machine sees them."""
        text = Path(f"/proc/{self._server}/status").read_text()
        rows = re.findall(r"^[UG]id:\s+(.*)$", text, re.M)
        return {int(number) for row in rows for number in row.split()}

    def wait_until_serving(self) -> None:
        deadline = time.monotonic() + _HANG_S
        while not self._serves():
            assert time.monotonic() < deadline, "the server does not become ready"
            time.sleep(0.02)

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._admin}/readyz", timeout=_HANG_S):
                return True
        except urllib.error.HTTPError:
            return False

    def end(self, signum: int) -> int:
        """Sends the server a signal; the exit code, which is 128 more than a signal that killed."""
        os.kill(self._server, signum)
        return self._process.wait(_HANG_S)

    def close(self) -> None:
        if self._process.poll() is None:
            os.kill(self._server, signal.SIGKILL)
        self._process.communicate(timeout=_HANG_S)
