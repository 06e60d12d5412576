"""A booted Debian: its own systemd as process 1, under systemd-nspawn.

Comes from: a root with systemd that mmdebstrap has made. Goes to: the tests of the .deb. Changes
there are lost with it, because they go to a layer in memory over the root. The network is its own,
with nothing but loopback.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from deploy.packages import program

_HANG_S = 300.0
_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"


class Booted:
    """A context manager. `shown`: a folder of this machine, which is /shown there."""

    def __init__(self, root: Path, shown: Path, log: Path):
        if os.geteuid() != 0:
            pytest.skip("systemd-nspawn boots for root only")
        self._log = log
        self._name = f"ballast-{os.getpid()}-{time.monotonic_ns()}"
        with log.open("wb") as out:
            self._nspawn = subprocess.Popen(
                [program("systemd-nspawn"), "--quiet", "--register=no", "--keep-unit", "--boot",
                 "--private-network", "--volatile=overlay", "--console=read-only",
                 f"--machine={self._name}", f"--bind-ro={shown}:/shown", f"--directory={root}"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def __enter__(self) -> Booted:
        try:
            self._await_boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        """Asks systemd there to halt."""
        self._nspawn.terminate()
        try:
            self._nspawn.wait(_HANG_S)
        finally:
            self._nspawn.kill()
            self._nspawn.wait()
            # nspawn keeps an empty folder for each machine.
            shutil.rmtree(f"/run/systemd/nspawn/propagate/{self._name}", ignore_errors=True)

    def run(self, *command: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a command there as root, to its end, which has to be with this exit code."""
        done = self._try(*command)
        assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}\n{self._journal()}"
        return done

    def property(self, name: str) -> str:
        """Of the unit ballastd, such as NRestarts."""
        shown = self.run("systemctl", "show", "--property", name, "--value", "ballastd")
        return shown.stdout.strip()

    def await_property(self, name: str, value: str) -> None:
        deadline = time.monotonic() + _HANG_S
        while (now := self.property(name)) != value:
            assert time.monotonic() < deadline, (
                f"{name} is {now!r}, not {value!r}: {self._journal()}")
            time.sleep(0.1)

    def path(self, name: str) -> Path:
        """A file there as this machine reaches it; absolute links lead elsewhere."""
        return Path(f"/proc/{self._first()}/root{name}")

    def _await_boot(self) -> None:
        deadline = time.monotonic() + _HANG_S
        said = ""
        # A unit that this machine does not let start is not the package's fault: "degraded".
        while said not in ("running", "degraded"):
            assert self._nspawn.poll() is None and time.monotonic() < deadline, (
                f"systemd-nspawn does not boot ({said}): {self._log.read_text(errors='replace')}")
            time.sleep(0.05)
            if self._first():
                said = self._try("systemctl", "is-system-running").stdout.strip()

    def _first(self) -> str:
        """The number of the first process there, on this machine; "" before it exists."""
        number = self._nspawn.pid
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        # Until it has numbers of its own it is nspawn itself, and a command would run on this host.
        own = os.stat("/proc/self/ns/pid").st_ino
        for child in children:
            with contextlib.suppress(FileNotFoundError):  # It has ended.
                if os.stat(f"/proc/{child}/ns/pid").st_ino != own:
                    return child
        return ""

    def _try(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program("nsenter"), "--target", self._first(), "--all", "env", "--ignore-environment",
             "--chdir=/", _PATH, *command], text=True, capture_output=True, check=False,
            timeout=_HANG_S)

    def _journal(self) -> str:
        return self._try("journalctl", "--no-pager", "--lines=40").stdout
