"""The common part of tests of exports: where servers keep snapshots and exports, and a job that
rests.

Comes from: tests of exports and imports. Goes to: small_run.Run, the built ballastctl.
"""

from __future__ import annotations

import os
from pathlib import Path

from e2e.ballastctl import jobs
from e2e.cluster import Cluster, fresh_job, wait_for
from e2e.small_run import Run


def shared(tmp_path: Path) -> dict[str, str]:
    return {
        "BALLAST_STORAGE_SNAPSHOT_DIR": str(tmp_path / "snapshots"),
        "BALLAST_STORAGE_EXPORT_DIR": str(tmp_path / "exports"),
    }


def in_exports(tmp_path: Path) -> list[str]:
    """The contents, without the home's list of them."""
    names = os.listdir(tmp_path / "exports")
    return sorted(name for name in names if not name.startswith(".quotas-"))


def rested(cluster: Cluster, rounds: int = 2) -> str:
    """A job at rest after a run."""
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(rounds)
    run.close()
    wait_for(lambda: jobs(cluster)[job] == "resting", "the job to rest")
    return job
