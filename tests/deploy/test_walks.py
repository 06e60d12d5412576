"""The three walks at the head of docs/operations.md, done from their text.

Real: ballastd, ballastctl, the trainers, cmake, kustomize, the files and their faults. Stand-ins:
systemd (systemd_host.py) and the cluster (kubectl_cluster.py), which do not run here. Addresses and
the paths below / are those of this machine.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from deploy.kubectl_cluster import KubectlCluster
from deploy.systemd_host import SystemdHost
from deploy.tools import DEPLOY, REPO
from deploy.walk import Walk, blocks

pytestmark = pytest.mark.slow
_HANG_S = 60.0
ENDPOINTS = "10.0.0.11:7000,10.0.0.12:7000"


def environment(*programs: Path) -> dict[str, str]:
    """The environment of an operator's shell; no settings of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BALLAST_")}
    return {**kept, "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
            "PYTHONPATH": str(REPO / "client" / "python")}


def below(root: Path) -> dict[str, str]:
    """The paths of the page -> those below `root`."""
    paths = {f" {path}": f" {root}{path}" for path in ("/usr", "/etc/", "/var/lib/")}
    return {**paths, ".venv/bin/python": sys.executable}


@pytest.fixture
def walk():
    """walk(stand_ins, texts, env) -> a Walk; its running programs end with the test."""
    made: list[Walk] = []

    def make(*arguments) -> Walk:
        made.append(Walk(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_a_host_with_systemd(walk, tmp_path):
    root = tmp_path / "host"
    texts = below(root)
    texts["systemd-sysusers"] = f"systemd-sysusers --root={root}"

    def started(host: SystemdHost) -> None:
        texts["127.0.0.1:7000"], texts["127.0.0.1:9000"] = host.address, host.admin

    host = SystemdHost(root, [], started)
    try:
        one = walk({"systemctl": host.systemctl}, texts, environment(root / "usr" / "bin"))
        for block in blocks("Walk 1: a host with systemd"):
            one.take(block)
        assert "ballast:" in (root / "etc" / "passwd").read_text()
        configured = yaml.safe_load((root / "etc/ballast/ballastd.yaml").read_text())
        assert configured["listen"]["address"] == "127.0.0.1:7000"  # As the page says.
        assert configured["admin"]["address"] == "127.0.0.1:9000"
    finally:
        host.close()


def test_a_cluster_with_kubectl(walk, ballastd, start_server, tmp_path):
    texts: dict[str, str] = {}
    cluster = KubectlCluster(tmp_path, start_server, ballastd, texts)
    one = walk({"kubectl": cluster.kubectl}, texts, environment())
    for block in blocks("Walk 2: a cluster with kubectl"):
        one.take(block)


# --- the sick cluster ----------------------------------------------------------------------------


class Pair:
    """Two hosts whose servers know each other, and the unit of deploy/systemd on each."""

    def __init__(self, folder: Path, binary: Path):
        peers = folder / "peers.json"
        self.hosts = []
        for i in range(2):
            host = SystemdHost(folder / f"host-{i}", ["--id", str(i), "--peers-file", str(peers)])
            self.hosts.append(host)
            install(host.root, binary)
            host.systemctl(["systemctl", "daemon-reload"])
            host.begin()
        listed = [{"id": i, "address": host.await_address()} for i, host in enumerate(self.hosts)]
        part = folder / "part"
        part.write_text(json.dumps({"peers": listed}))
        part.rename(peers)
        for host in self.hosts:
            assert host.await_ready()[0] == 0

    def metrics(self, host: int) -> str:
        url = f"http://{self.hosts[host].admin}/metrics"
        with urllib.request.urlopen(url, timeout=_HANG_S) as reply:
            return reply.read().decode()

    def close(self) -> None:
        for host in self.hosts:
            host.close()


def install(root: Path, binary: Path) -> None:
    """The files that the first walk installs, with the server of this build."""
    (root / "usr" / "bin").mkdir()
    (root / "usr/bin/ballastd").symlink_to(binary)
    (root / "etc/ballast").mkdir()
    for name in ("ballastd.yaml", "ballastd.env"):
        (root / "etc/ballast" / name).write_text((DEPLOY / "systemd" / name).read_text())
    unit = (DEPLOY / "systemd" / "ballastd.service").read_text()
    (root / "etc/systemd/system/ballastd.service").write_text(unit)


@pytest.fixture
def pair(ballastd, tmp_path):
    made = Pair(tmp_path, ballastd)
    yield made
    made.close()


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + _HANG_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def committed(pair: Pair) -> int:
    """Rounds of the job at the home."""
    found = re.search(r'^ballast_rounds_total\{\S*run="gpt",result="committed"\} (\d+)',
                      pair.metrics(0), re.M)
    return int(found[1]) if found else 0


def series(pair: Pair, text: str) -> bool:
    """Whether the home exports this line, which the alert looks at."""
    return re.search(rf"^{re.escape(text)}$", pair.metrics(0), re.M) is not None


def test_a_sick_cluster(walk, pair, ballastd, tmp_path):
    """First a trainer is killed, then a server, whose records a person has moved away."""
    sick = pair.hosts[1]
    look, start_trainer, look_again, mend = blocks("Walk 3: a sick cluster, from alert to cure")
    again = start_trainer[0].text
    texts = {**below(sick.root), ENDPOINTS: ",".join(host.address for host in pair.hosts)}
    one = walk({"systemctl": sick.systemctl, "journalctl": sick.journalctl}, texts,
               environment(ballastd.parent))
    for text in (look[0].text, again.replace("RANK=1", "RANK=0"), again):
        one.run(text)
    wait_for(lambda: committed(pair) > 2, "rounds")
    one.kill_last()
    labels = '{tenant="default",run="gpt",state="unresponsive"}'
    wait_for(lambda: series(pair, f"ballast_trainers{labels} 1"),
             "what TrainerLost looks at")
    one.take(look)
    one.take(start_trainer)
    break_server(pair)
    one.take(look_again)
    one.take(mend)
    rounds = committed(pair)
    wait_for(lambda: committed(pair) > rounds, "more rounds")


def break_server(pair: Pair) -> None:
    """The server is killed and does not come back: exit code 4."""
    sick = pair.hosts[1]
    sick.crash()
    old = sick.root / "var/lib/ballast.old"
    old.mkdir()
    (sick.root / "var/lib/ballast/meta").rename(old / "meta")
    assert sick.start()[0] == 1
    wait_for(lambda: series(pair, 'ballast_peer_reachable{peer="1"} 0'), "the home to notice")
