"""ballastctl as an operator calls it, on the first server of a cluster.

Comes from: tests of snapshots, forks, exports and imports. Goes to: the built ballastctl.
"""

from __future__ import annotations

import json
import subprocess

from e2e.cluster import Cluster, wait_for


def ctl(cluster: Cluster, *arguments: str, fails: bool = False) -> subprocess.CompletedProcess:
    done = try_ctl(cluster, *arguments)
    assert (done.returncode != 0) == fails, done.stderr + done.stdout
    return done


def try_ctl(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess:
    command = [str(cluster.binary.parent / "ballastctl"), *arguments]
    command += ["--endpoint", cluster.endpoints[0]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def export(cluster: Cluster, job: str, *arguments: str) -> dict:
    return json.loads(ctl(cluster, "export", job, *arguments, "-o", "json").stdout)


def jobs(cluster: Cluster) -> dict[str, str]:
    said = try_ctl(cluster, "jobs", "list", "-o", "json")
    return {j["name"]: j["state"] for j in json.loads(said.stdout or '{"jobs": []}')["jobs"]}


def snapshots(
    cluster: Cluster, *arguments: str, fails: bool = False
) -> subprocess.CompletedProcess:
    done = try_snapshots(cluster, *arguments)
    assert (done.returncode != 0) == fails, done.stderr + done.stdout
    return done


def try_snapshots(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess:
    command = [str(cluster.binary.parent / "ballastctl"), "snapshot", *arguments]
    command += ["--endpoint", cluster.endpoints[0]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def ask(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess:
    """As try_snapshots, of servers of which some have just been started."""
    answers = []

    def answered() -> bool:
        answers.append(try_snapshots(cluster, *arguments))
        soon = ("waits for its peers", "reads its jobs from disk", "Connection refused")
        return not all(cluster.running()) or not any(why in answers[-1].stderr for why in soon)

    wait_for(answered, "the servers to find each other")
    return answers[-1]


def listed(cluster: Cluster) -> list[dict]:
    return json.loads(snapshots(cluster, "list", "-o", "json").stdout)["snapshots"]
