"""deploy/monitoring/up.sh: a real Prometheus watches real servers while they train."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from deploy.test_monitoring import FOLDER, dashboard, queries, rules
from deploy.tools import REPO, run

_HANG_S = 90.0
# TrainerLost fires after its `for`, and rests again.
_ALERT_HANG_S = 180.0
# Metric -> the event before the first of its series appears.
EVENTS = {
    "ballast_frames_rejected_total": "a server refuses a frame",
    "ballast_checksum_errors_total": "a frame arrives damaged",
    "ballast_admissions_refused_total": "a trainer is not let in",
    "ballast_calls_refused_total": "a caller's identity does not permit a call",
    "ballast_last_snapshot_timestamp_seconds": "a snapshot is taken",
    "ballast_tls_cert_expiry_timestamp_seconds": "the servers have certificates",
    "ballast_handshake_failures_total": "the servers have certificates",
    'grpc_code!="OK"': "a call fails",
}


class Prometheus:
    """The HTTP interface of a Prometheus on a free port of loopback."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    def get(self, path: str) -> dict | list:
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}", timeout=30) as reply:
            return json.load(reply)["data"]

    def query(self, text: str) -> list:
        return self.get("query?" + urllib.parse.urlencode({"query": text}))["result"]

    def firing(self) -> set[str]:
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"]
                if alert["state"] == "firing"}

    def has(self, text: str) -> bool:
        """Whether a query has an answer by now; no while Prometheus starts."""
        try:
            return bool(self.query(text))
        except OSError:
            return False


def children(pid: int) -> set[int]:
    """A process and all that it started, and these in turn."""
    found = {pid}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found |= children(int(child))
    return found


def trainers(pid: int) -> list[int]:
    """The training processes among all that a process has started."""
    def is_trainer(child: int) -> bool:
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        return b"ballast.run" not in words and any(w.endswith(b"train.py") for w in words)

    return sorted(child for child in children(pid) if is_trainer(child))


def wait_until(condition, what: str, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.5)


def heed_interrupts() -> None:
    """A run in the background ignores SIGINT, and a shell cannot trap a signal that it inherits
    ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def lose_a_trainer(prometheus: Prometheus, pid: int) -> None:
    """One of two trainers hangs until an alert fires; then it comes back."""
    lost = trainers(pid)[-1]
    os.kill(lost, signal.SIGSTOP)
    try:
        wait_until(lambda: "TrainerLost" in prometheus.firing(), "TrainerLost", _ALERT_HANG_S)
        # The same job waits for its trainer, which is no other alert.
        assert prometheus.firing() == {"TrainerLost"}
    finally:
        os.kill(lost, signal.SIGCONT)
    wait_until(lambda: not prometheus.firing(), "the end of TrainerLost", _ALERT_HANG_S)


def impatient(tree: Path) -> Path:
    """up.sh in a tree where TrainerLost waits for seconds; rules_test.yaml has the true time."""
    folder = tree / "deploy" / "monitoring"
    shutil.copytree(FOLDER, folder)
    for name in (".venv", "build", "client"):
        (tree / name).symlink_to(REPO / name)
    text = (FOLDER / "rules.yaml").read_text()
    head, name, rest = text.partition("- alert: TrainerLost\n")
    changed = rest.replace("for: 2m\n", "for: 5s\n", 1)
    assert name and rest != changed
    (folder / "rules.yaml").write_text(head + name + changed)
    return folder / "up.sh"


@pytest.mark.slow
def test_every_query_has_an_answer_while_a_job_trains(tmp_path):
    prometheus = Prometheus()
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen(
            [impatient(tmp_path / "tree"), "--listen", prometheus.address, "--trainers", "2",
             "--scrape-interval", "1s"], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(tmp_path)}, preexec_fn=heed_interrupts)
        try:
            wanted = set(queries(dashboard())) | {r["record"] for r in rules() if "record" in r}
            wanted = {q for q in wanted if not any(event in q for event in EVENTS)}
            wanted.add("sum(up) == 2")
            deadline = time.monotonic() + _HANG_S
            while missing := {q for q in wanted if not prometheus.has(q)}:
                log.seek(0)
                assert process.poll() is None, log.read()
                assert time.monotonic() < deadline, f"no answer to {missing}; {log.read()}"
                time.sleep(0.5)
            known = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
            assert {rule["health"] for rule in known} == {"ok"}
            assert len(known) == len(rules())
            # A pending one means a scrape missed on a busy machine.
            assert "firing" not in {alert["state"] for alert in prometheus.get("alerts")["alerts"]}
            lose_a_trainer(prometheus, process.pid)
            started = children(process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(_HANG_S) == 0
    assert len(started) >= 6  # up.sh, ballast-run, two servers, two trainers, Prometheus.
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.glob("tmp.*"))


def test_without_prometheus_it_says_how_to_get_it(tmp_path):
    """In a tree where setup.sh has not run, with nothing on PATH but the shell's own tools."""
    script = tmp_path / "deploy" / "monitoring" / "up.sh"
    script.parent.mkdir(parents=True)
    script.write_text((FOLDER / "up.sh").read_text())
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = run("/bin/bash", script, env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "scripts/setup.sh unpacks it" in done.stderr


@pytest.mark.parametrize("arguments", [["--lisen", "x"], ["--listen"], ["up"]])
def test_a_wrong_argument_starts_nothing(arguments):
    done = run(FOLDER / "up.sh", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(r"up\.sh: .*unknown", done.stderr)
