"""A plan of scripts on running servers: started, watched while servers are killed, and read.

Comes from: the tests of GPT-2. Goes to: worker.py, in a process of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from e2e import matrix_trainer
from e2e.cluster import Cluster, fresh_job
from e2e.gpt2 import run
from e2e.gpt2.net import Case

HANG_S = 300.0


@dataclasses.dataclass(frozen=True)
class Part:
    """A script in one case. name: of its folder. ours: with Ballast. job: else a fresh one."""

    name: str
    way: str
    case: Case
    world: int = 1
    ours: bool = True
    job: str = dataclasses.field(default_factory=lambda: fresh_job("gpt2"))


class Results:
    """A plan's results in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def codes(self, name: str) -> list[int]:
        return json.loads((self._folder / name / "codes.json").read_text())

    def output(self, name: str) -> str:
        """The output of its trainers."""
        return "".join(p.read_text() for p in sorted((self._folder / name).glob("trainer-*.log")))

    def logs(self, name: str, world: int = 1) -> list[run.Log]:
        """Each trainer's log; all of them have ended well."""
        assert self.codes(name) == [0] * world, f"{name}:\n{self.output(name)}"
        return [run.Log.read(self._folder / name, rank) for rank in range(world)]


def carry_out(cluster: Cluster, folder: Path, plan: list[Part], durability: str) -> Results:
    """Runs the parts in their order; where one asks for it, kills all servers and restarts them.

    Times out after HANG_S. To be called by the main thread.
    """
    folder.mkdir()
    file = folder / "plan.json"
    file.write_text(json.dumps([dataclasses.asdict(part) for part in plan]))
    environ = {
        **matrix_trainer.environment(), "BALLAST_ENDPOINTS": ",".join(cluster.endpoints),
        "BALLAST_DURABILITY": durability, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with open(folder / "worker.log", "w") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "e2e.gpt2.worker", file, folder], env=environ, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        _watch(worker, cluster, {Path(p.case.folder) / run.STRIKE for p in plan if p.case.folder})
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    assert worker.returncode == 0, (folder / "worker.log").read_text()
    return Results(folder)


def _watch(worker: subprocess.Popen, cluster: Cluster, wanted: set[Path]) -> None:
    deadline = time.monotonic() + HANG_S
    servers = range(len(cluster.endpoints))
    while worker.poll() is None:
        assert time.monotonic() < deadline, "the scripts hang"
        asked = [path for path in wanted if path.exists()]
        if not asked:
            time.sleep(0.01)
            continue
        for server in servers:
            cluster.kill(server, signal.SIGKILL)
        for path in asked:
            path.unlink()  # The script meets absent servers.
        for server in servers:
            cluster.restart(server)
