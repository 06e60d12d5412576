"""ballast-run as a process over a fake ballastd, for the tests of the launcher.

Comes from: the fixture `launcher` in conftest.py. Goes to: ballast.run, fake_ballastd.py.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parents[1] / "client" / "python"


class Launcher:
    """Runs ballast-run in `folder` on scripts written there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.server = folder / "ballastd"
        program = HERE / "fake_ballastd.py"
        self.server.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
        self.server.chmod(0o755)
        self.env = {
            **os.environ,
            "PYTHONPATH": str(CLIENT),
            "BALLAST_BALLASTD": str(self.server),
            "FAKE_BALLASTD_TRACE": str(self.trace),
            "TMPDIR": str(self.temporary),
        }
        self.env.pop("OMP_NUM_THREADS", None)
        self.program = ["-m", "ballast.run"]

    def script(self, text: str) -> Path:
        path = self.folder / "train.py"
        path.write_text(textwrap.dedent(text))
        return path

    def start(self, *arguments: object) -> subprocess.Popen:
        command = [sys.executable, *self.program, *map(str, arguments)]
        return subprocess.Popen(
            command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: object) -> subprocess.CompletedProcess:
        child = self.start(*arguments)
        out, err = child.communicate(timeout=60)
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def events(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    def server_pids(self) -> list[int]:
        return [int(e.split()[2]) for e in self.events() if e.startswith("start")]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_for(path: Path, child: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def await_end(pids: list[int]) -> None:
    """Waits until all these processes have ended; kills those that do not, and fails."""
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if not gone(pid)]:
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"{left} still run")
        time.sleep(0.02)


def forever(launcher: Launcher, more: str = "") -> Path:
    """A script that writes pid-<rank> and ends at a signal only."""
    return launcher.script(
        f"""
        import os, signal, sys, time
        rank = os.environ["RANK"]
        {more}
        def end(signum, frame):
            open(os.path.join({str(launcher.folder)!r}, f"end-{{rank}}"), "w").write(str(signum))
            sys.exit(0)
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, end)
        path = os.path.join({str(launcher.folder)!r}, f"pid-{{rank}}")
        with open(path + ".tmp", "w") as f:
            f.write(str(os.getpid()))
        os.rename(path + ".tmp", path)
        while True:
            time.sleep(0.05)
        """
    )
