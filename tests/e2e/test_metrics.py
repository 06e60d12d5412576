"""Every series that a server declares moves when the thing happens that it counts.

Two servers and two trainers do the work of a cluster; the series are compared from scrape to
scrape. A series that needs a fault on the wire, or a moment that no scrape is sure to see, is moved
by another test, named here. A series that neither moves is an error.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import torch

import ballast
import ballast.torch as bt
from e2e.ballastctl import export
from e2e.cluster import HANG_S, Cluster, fresh_job, wait_for
from e2e.exports import shared
from e2e.small_run import Run

REPO = Path(__file__).resolve().parents[2]
PROMTOOL = REPO / "build/tools/promtool"
MIB = 1 << 20
SETTINGS = {
    "BALLAST_STORAGE_MEMORY_BUDGET": "512MiB",
    "BALLAST_STORAGE_DRAM_BUDGET": "256MiB",
    "BALLAST_ROUNDS_WORKER_THREADS": "2",
    "BALLAST_CLUSTER_NAME": "north",
    "BALLAST_LIMITS_MAX_JOBS": "50",
}
_ROUNDS = "tests/server/engine/round_metrics_test.cc"
_STORAGE = "tests/server/durability/storage_meter_test.cc"
_TLS = ("tests/e2e/test_tls.py", "test_certificates_are_replaced_while_rounds_go_on")
# Series -> the file and the test that moves it.
ELSEWHERE = {
    'ballast_rounds_total{result="aborted"}': (_ROUNDS, "IsBegunAndNeverDecidedIsAborted"),
    'ballast_rounds_total{result="halted"}': (_ROUNDS, "ARoundCountsAsItWasDecided"),
    'ballast_round_phase{phase="idle"}': (_ROUNDS, "EachPhaseIsEnteredInItsTurn"),
    'ballast_round_phase{phase="collect"}': (_ROUNDS, "EachPhaseIsEnteredInItsTurn"),
    'ballast_round_phase{phase="vote"}': (_ROUNDS, "EachPhaseIsEnteredInItsTurn"),
    'ballast_round_phase{phase="step"}': (_ROUNDS, "EachPhaseIsEnteredInItsTurn"),
    'ballast_trainers{state="unresponsive"}': (_ROUNDS, "TrainersAreCountedByWhatIsKnownOfThem"),
    "ballast_push_duplicates_total": (_ROUNDS, "FramesThatAreRefusedAreCountedByReason"),
    "ballast_push_conflicts_total": (_ROUNDS, "FramesThatAreRefusedAreCountedByReason"),
    "ballast_frames_rejected_total": (_ROUNDS, "FramesThatAreRefusedAreCountedByReason"),
    "ballast_checksum_errors_total": (_STORAGE, "DamageIsCountedWhereItIsFound"),
    "ballast_log_flush_duration_seconds": (
        _STORAGE, "AppendedBytesAreUnflushedUntilAFlushReturns"),
    "ballast_log_unflushed_bytes": (_STORAGE, "AppendedBytesAreUnflushedUntilAFlushReturns"),
    "ballast_log_short_of_room": (_STORAGE, "ALogWithoutRoomIsShortOfIt"),
    "ballast_credit_wait_seconds_total": (
        "tests/server/service/trainer_stream_test.cc", "ATrainerThatIgnoresItsCredit"),
    "ballast_calls_refused_total": (
        "tests/server/security/gate_test.cc", "ARoleMayCallWhatItsRowSays"),
    "ballast_connections_refused_total": (
        "tests/server/net/accept_loop_test.cc", "SilenceGarbageAndHangingUpAreClosed"),
    "ballast_serving": (
        "tests/server/main/server_end_test.cc", "HealthAndReadinessTurnWhileItsPortsStillAnswer"),
    "ballast_damaged_jobs": (
        "tests/server/directory/damaged_jobs_test.cc", "StayDamagedUntilTheirFilesAreBack"),
    "ballast_files_at_fault": (
        "tests/e2e/test_tokens.py",
        "test_health_names_a_list_that_is_not_in_force_until_it_is_mended"),
    "ballast_cluster_problems": (
        "tests/server/peer/peer_sightings_test.cc", "ListsThatDifferAreShownAtBothServers"),
    "ballast_disk_answers": (
        "tests/server/host/disk_watch_test.cc", "ADiskThatHangsHasNoBytesAndSoonNoAnswer"),
    "ballast_disk_wait_seconds": (
        "tests/server/host/disk_watch_test.cc",
        "ADiskThatAnswersAndEndsNoCallHangsAfterTenSeconds"),
    "ballast_tls_cert_expiry_timestamp_seconds": _TLS,
    "ballast_tls_reloads_total": _TLS,
    "ballast_handshake_failures_total": (
        "tests/e2e/test_handshakes.py", "test_a_failed_handshake_is_counted_by_its_cause"),
    "ballast_listener_accepts": (
        "tests/server/main/listener_probe_test.cc", "APortThatNeverSpeaksDoesNotAccept"),
}
# Of an event that may or may not happen here, and has its own test.
EVENTS = {
    "ballast_frames_rejected_total", "ballast_checksum_errors_total",
    "ballast_calls_refused_total",
}
# Of servers with certificates only.
SECURED = {
    "ballast_tls_cert_expiry_timestamp_seconds", "ballast_tls_reloads_total",
    "ballast_handshake_failures_total",
}
# Values of a process from its start on. Compared with that in the test below.
FACTS = {
    "ballast_build_info", "ballast_cluster_info", "ballast_workers", "ballast_memory_budget_bytes",
    "ballast_tier_capacity_bytes", "ballast_disk_size_bytes", "ballast_jobs_limit",
    "process_max_fds", "process_start_time_seconds",
}


def declared() -> dict[str, str]:
    """Metric -> type, of the reference page, which a test compares with the declarations."""
    page = (REPO / "docs/reference/metrics.md").read_text()
    return dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.M))


class Scrapes:
    """All values that each series had in the scrapes of a cluster, over jobs and servers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # By series, the labels `run` and `peer` left out. Of a series that begins with its first
        # event a 0 as well.
        self.values: dict[str, set[float]] = {}
        self._first_over = False

    def text(self, server: int) -> str:
        return self._cluster.get(server, "/metrics")

    def take(self) -> None:
        for server, alive in enumerate(self._cluster.running()):
            if alive:
                self._add(self.text(server))
        self._first_over = True

    def _add(self, text: str) -> None:
        for name, labels, value in re.findall(r"^(\w+?)(?:\{(.*)\})? (\S+)$", text, re.M):
            if name.endswith("_bucket") or name.endswith("_sum"):
                continue
            kept = [x for x in re.findall(r'(\w+="[^"]*")', labels)
                    if not x.startswith(("tenant=", "run=", "peer="))]
            name = name.removesuffix("_count")
            series = name + ("{" + ",".join(kept) + "}" if kept else "")
            begins = self._first_over and any(x in series for x in ("{reason=", "{where="))
            self.values.setdefault(series, {0.0} if begins else set()).add(float(value))

    def moved(self, series: str) -> bool:
        return len(self.values[series]) > 1


def moved_by(name: str, series: str, scrapes: Scrapes) -> bool:
    if name.startswith("grpc_server_"):  # One called method stands for all of them.
        return any(scrapes.moved(s) for s in scrapes.values if s.startswith(name))
    return scrapes.moved(series)


def refused(cluster: Cluster) -> None:
    """An attach to an absent job."""
    weights = torch.nn.Parameter(torch.ones(4))
    opt = bt.AdamW([weights], lr=0.1, endpoints=cluster.endpoints, job=fresh_job("none"),
                   world_size=1, rank=0, resume="must", durability="process")
    with pytest.raises(ballast.BallastError):
        opt.attach()


def live(cluster: Cluster, scrapes: Scrapes) -> None:
    """The life of a cluster: two jobs, one on NVMe, a skipped round, a snapshot, a kill."""
    scrapes.take()
    run = Run(cluster, fresh_job(), 2)
    run.step(3)
    scrapes.take()
    on_nvme = Run(cluster, fresh_job("nvme"), 1, device="nvme")
    on_nvme.step(3)
    scrapes.take()
    for replica in run.replicas:
        for p in replica:
            p.grad = torch.full_like(p, float("nan"))
    run.trainers.step()
    run.step(2, seed=3)
    run.trainers.optimizers[0].snapshot("one")
    refused(cluster)
    scrapes.take()
    cluster.kill(1, signal.SIGKILL)
    wait_for(lambda: 'peer="1"} 0' in scrapes.text(0), "server 0 to miss server 1")
    scrapes.take()
    cluster.restart(1)
    cluster.wait_until_serving()
    run.step(6)
    scrapes.take()
    run.close()
    on_nvme.close()
    wait_for(lambda: "left" not in scrapes.text(0) or take_left(scrapes), "the trainers to leave")
    scrapes.take()


def take_left(scrapes: Scrapes) -> bool:
    scrapes.take()
    return scrapes.moved('ballast_trainers{state="left"}')


@pytest.fixture(scope="module")
def life(ballastd, tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    cluster = Cluster(ballastd, 2, folder, **SETTINGS, BALLAST_TIMING_JOB_TTL="20s",
                      BALLAST_STORAGE_SNAPSHOT_DIR=str(folder / "snapshots"))
    try:
        cluster.wait_until_serving()
        scrapes = Scrapes(cluster)
        live(cluster, scrapes)
        yield cluster, scrapes
    finally:
        cluster.stop()


def test_no_declared_series_stands_still(life):
    _, scrapes = life
    still = []
    for name in declared():
        series = [s for s in scrapes.values if s.partition("{")[0] == name]
        if not series and name not in EVENTS | SECURED:
            still.append(f"{name} has no series")
        for one in series:
            if name in FACTS or name in ELSEWHERE or one in ELSEWHERE:
                continue
            if not moved_by(name, one, scrapes):
                still.append(one)
    assert still == []


def test_every_exported_family_is_declared(life):
    _, scrapes = life
    assert {s.partition("{")[0] for s in scrapes.values} <= set(declared())


def test_the_tests_that_move_the_others_exist():
    for series, (path, test) in ELSEWHERE.items():
        assert series.partition("{")[0] in declared(), series
        assert test in (REPO / path).read_text(), f"{series}: {path} has no {test}"


def test_facts_are_those_that_the_process_was_started_with(life):
    cluster, scrapes = life
    text = scrapes.text(0)

    def value(series: str) -> float:
        return float(re.search(rf"^{re.escape(series)} (\S+)$", text, re.M).group(1))

    assert value("ballast_workers") == 2
    assert value("ballast_memory_budget_bytes") == 512 * MIB
    assert value("ballast_jobs_limit") == 50
    assert value('ballast_tier_capacity_bytes{tier="dram"}') == 256 * MIB
    disk = os.statvfs(cluster._servers._data_dir)
    size = disk.f_blocks * disk.f_frsize
    assert value('ballast_tier_capacity_bytes{tier="nvme"}') == size
    assert value('ballast_disk_size_bytes{directory="data"}') == size
    assert value('ballast_disk_size_bytes{directory="snapshot"}') == size
    limits = Path(f"/proc/{cluster.pid(0)}/limits").read_text()
    assert value("process_max_fds") == int(re.search(r"Max open files +(\d+)", limits).group(1))
    boot = float(re.search(r"^btime (\d+)", Path("/proc/stat").read_text(), re.M).group(1))
    assert value("process_start_time_seconds") > boot
    build = r'^ballast_build_info\{version="[\d.]+",revision="[0-9a-f]{40}",isa="\w+"\} 1$'
    assert re.search(build, text, re.M), "cmake found no git, and no BALLAST_REVISION"
    assert 'ballast_cluster_info{cluster="north"} 1' in text


def test_promtool_finds_no_fault_in_what_a_server_exports(life):
    _, scrapes = life
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=scrapes.text(0), text=True,
                          capture_output=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_an_export_is_no_snapshot_of_the_job(start_cluster, tmp_path):
    cluster = start_cluster(1, **shared(tmp_path))
    run = Run(cluster, fresh_job(), 1)
    run.step(2)
    labels = f'{{tenant="default",run="{run.trainers.job}"}}'
    never = f"ballast_last_snapshot_timestamp_seconds{labels} 0\n"
    export(cluster, run.trainers.job, "--name", "out")
    assert never in cluster.get(0, "/metrics")
    run.trainers.optimizers[0].snapshot("one")
    assert never not in cluster.get(0, "/metrics")
    # The home reads the time back when it starts again.
    cluster.kill(0, signal.SIGKILL)
    cluster.restart(0)
    cluster.wait_until_serving()
    run.step(1)
    known = never.partition("}")[0]
    wait_for(lambda: known in (text := cluster.get(0, "/metrics")) and never not in text,
             "the time of the snapshot")
    run.close()


def test_the_series_of_a_job_end_with_it(life):
    _, scrapes = life
    wait_for(lambda: "run=" not in scrapes.text(0), "the end of the jobs' series")
