"""What only an operator's command can do, from a script: forks, and lists of snapshots and jobs.

Comes from: ballast.rejoin, ballast.deepspeed, ballast.hf. Goes to: the ballastctl binary, which
asks the servers. Needs neither torch nor the extension. Thread safety: each call is one process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ballast.errors import BadArgument, BallastError, Unreachable
from ballast.launcher.servers import LaunchError, find_ballastd

VARIABLE = "BALLAST_BALLASTCTL"
_UNREACHABLE_CODE = 3
# What servers answer that have just been started.
_STARTING = ("waits for its peers", "reads its jobs from disk")
_PAUSE_S = 0.2


def find_ballastctl(environ: Mapping[str, str]) -> Path:
    """BALLAST_BALLASTCTL, beside the ballastd that ballast-run would take, or on PATH.

    Raises BadArgument, which says where it was looked for.
    """
    named = environ.get(VARIABLE)
    if named:
        if os.access(named, os.X_OK) and Path(named).is_file():
            return Path(named)
        raise BadArgument(f"{VARIABLE}: {named} is not an executable file; name a built ballastctl")
    try:
        beside = find_ballastd(None, environ).with_name("ballastctl")
    except LaunchError:
        beside = None
    if beside is not None and os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which("ballastctl", path=environ.get("PATH"))
    if on_path:
        return Path(on_path)
    raise BadArgument(
        f"no ballastctl found: not in {VARIABLE}, not beside ballastd, not on PATH. A load makes a "
        "job of a snapshot with it; build it with `cmake --build build/release --target ballastctl`"
    )


class Control:
    """Commands to the servers of one job.

    endpoints: "host:port" of any of them. patience_s: how long a command is repeated while no
    server can be reached, or servers are still starting.
    """

    def __init__(self, endpoints: Sequence[str], patience_s: float) -> None:
        self._endpoints = list(endpoints)
        self._patience_s = patience_s

    def job(self, name: str) -> dict[str, Any] | None:
        """The durable job of that name, as `ballastctl jobs list -o json` shows it, or None."""
        jobs = self._ask("jobs", "list").get("jobs", [])
        return next((job for job in jobs if job["name"] == name), None)

    def snapshots(self, job: str) -> list[dict[str, Any]]:
        """The snapshots of a job, oldest first; [] for an unknown one."""
        return list(self._ask("snapshot", "list", job).get("snapshots", []))

    def fork(self, job: str, snapshot: str, new: str, world: int) -> None:
        """Makes the job `new`, of `world` trainers, of a snapshot. BallastError says why not."""
        self._ask("snapshot", "fork", job, snapshot, "--as", new, "--world", str(world))

    def delete_snapshot(self, job: str, snapshot: str) -> None:
        """Removes a snapshot; its forks stay. BallastError says why not."""
        self._ask("snapshot", "delete", job, snapshot)

    def _ask(self, *words: str) -> dict[str, Any]:
        asked = ["--endpoint", ",".join(self._endpoints), "-o", "json"]
        command = [str(find_ballastctl(os.environ)), *words, *asked]
        deadline = time.monotonic() + self._patience_s
        while True:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return _read(words, done.stdout)
            unreachable = done.returncode == _UNREACHABLE_CODE
            if not unreachable and not any(why in done.stderr for why in _STARTING):
                raise BallastError(_text(words, done.stderr))
            if time.monotonic() >= deadline:
                raise Unreachable(_text(words, done.stderr))
            time.sleep(_PAUSE_S)


def _text(words: Sequence[str], said: str) -> str:
    return f"ballastctl {' '.join(words)}: {said.strip().removeprefix('ballastctl: ')}"


def _read(words: Sequence[str], said: str) -> dict[str, Any]:
    # Only the last line: a command may say what it did before.
    lines = said.strip().splitlines()
    try:
        values = json.loads(lines[-1]) if lines else {}
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise BallastError(f"ballastctl {' '.join(words)} printed {said[:200]!r}, which is no JSON")
    return values
