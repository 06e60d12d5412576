"""What systemd hears of the unit's server: when it serves, replays, ends, and whether it lives."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
import torch

import ballast.torch as bt

from deploy.server import ON_LOOPBACK, Server
from deploy.supervisor import Supervisor
from deploy.test_systemd import unit
from deploy.tools import REPO, run
from deploy.training import SMALL, train

# This many beats of a working server are proof that another one would have had its own.
MANY_BEATS = 10


@pytest.fixture
def supervisor():
    with Supervisor() as made:
        yield made


def test_the_unit_waits_for_the_server_and_watches_it():
    service = unit()["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert int(service["WatchdogSec"]) >= 30  # A stop of the machine is no hung server.
    assert service["Restart"] == "on-failure"  # Also after the watchdog.


@pytest.mark.parametrize("abstract", [False, True])
def test_it_is_ready_when_it_serves_and_says_that_it_ends(abstract, start_server, tmp_path):
    peers = tmp_path / "peers.json"
    with Supervisor(abstract) as supervisor:
        server = start_server(*ON_LOOPBACK, "--peers-file", str(peers), **supervisor.variables)
        supervisor.await_beats(3)
        assert server.get("/readyz")[0] == 503
        assert supervisor.words() == ["STATUS=starting"]
        listed = tmp_path / "part"
        listed.write_text(json.dumps({"peers": [{"id": server.id, "address": server.address}]}))
        listed.rename(peers)
        supervisor.await_line("READY=1")
        assert server.get("/readyz")[0] == 200
        assert server.stop(within_s=60) == 0
        assert supervisor.words() == ["STATUS=starting", "STATUS=replaying", "READY=1",
                                      "STATUS=serving", "STOPPING=1", "STATUS=stopping"]


def leave_running_jobs(server: Server, names: list[str]) -> None:
    """Durable jobs with a round, whose server is killed while they run."""
    trainers = []
    for name in names:
        weights = torch.nn.Parameter(torch.ones(512))
        weights.grad = torch.ones(512)
        trainers.append(bt.AdamW([("weights", weights)], lr=0.1, endpoints=server.address,
                                 job=name, world_size=1, rank=0, durability="process", **SMALL))
        trainers[-1].attach()
        trainers[-1].step()
    server.kill()
    for trainer in trainers:
        trainer._membership.session.abandon("its server is gone")


def test_a_replay_is_not_ready_and_asks_for_time_while_it_makes_progress(
        ballastd, start_server, tmp_path, supervisor):
    flags = (*ON_LOOPBACK, "--data-dir", str(tmp_path / "data"))
    first = start_server(*flags)
    first.wait_until_serving()
    leave_running_jobs(first, ["one", "two"])
    # The replay of one job, and then a disk that gives nothing.
    variables = {**supervisor.variables, "BALLAST_FAILPOINTS": "recovery.before_load=1*off->pause"}
    extents = 512 // SMALL["extent_elements"]
    with subprocess.Popen([ballastd, *flags], env=variables, stderr=subprocess.DEVNULL) as process:
        try:
            supervisor.await_line(f"STATUS=replaying, {extents} extents read")
            asked = supervisor.words().count("EXTEND_TIMEOUT_USEC=120000000")
            assert 1 <= asked <= extents
            supervisor.await_beats(MANY_BEATS)
            assert supervisor.words().count("EXTEND_TIMEOUT_USEC=120000000") == asked
            assert "READY=1" not in supervisor.words() and process.poll() is None
        finally:
            process.kill()


def test_a_replay_ends_when_it_is_told_to(ballastd, start_server, tmp_path, supervisor):
    """At once, with exit code 0, however long the replay would still take."""
    flags = (*ON_LOOPBACK, "--data-dir", str(tmp_path / "data"))
    first = start_server(*flags)
    first.wait_until_serving()
    leave_running_jobs(first, ["one"])
    variables = {**supervisor.variables, "BALLAST_FAILPOINTS": "recovery.before_load=pause"}
    with subprocess.Popen([ballastd, *flags], env=variables, stderr=subprocess.PIPE,
                          text=True) as process:
        try:
            supervisor.await_line("STATUS=replaying")
            process.terminate()
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0 and "before the server serves" in log, log
    assert "READY=1" not in supervisor.words()


def await_silence(hung: Supervisor, control: Supervisor) -> None:
    """Returns when `control` has heard many signs of life, one after the other, and `hung` none."""
    deadline = time.monotonic() + 60
    beats = -1
    while (now := hung.listen().count("WATCHDOG=1")) != beats:
        assert time.monotonic() < deadline, "the signs of life do not end"
        beats = now
        control.await_beats(MANY_BEATS)


def test_an_executor_that_hangs_gives_no_sign_of_life(start_server, tmp_path, supervisor):
    """The making of a job hangs on the only thread. A second server is the control."""
    hung = start_server(*ON_LOOPBACK, "--data-dir", str(tmp_path / "hung"),
                        "--set", "rounds.executor_threads=1", **supervisor.variables,
                        BALLAST_FAILPOINTS="job.before_create=pause")
    supervisor.await_line("READY=1")
    script = f"from deploy.training import train; train({hung.address!r}, 'gpt', 1)"
    path = os.pathsep.join([str(REPO / "tests"), str(REPO / "client" / "python")])
    trainer = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL,
                               env={**os.environ, "PYTHONPATH": path})
    try:
        with Supervisor() as other:
            start_server(*ON_LOOPBACK, **other.variables)
            other.await_line("READY=1")
            await_silence(supervisor, other)
        assert "STOPPING=1" not in supervisor.words()
    finally:
        trainer.kill()
        trainer.wait()


def test_a_server_that_lost_its_state_was_never_ready(ballastd, start_server, tmp_path, supervisor):
    """Exit code 4, which the unit does not answer with another start."""
    data = tmp_path / "data"
    server = start_server(*ON_LOOPBACK, "--data-dir", str(data))
    server.wait_until_serving()
    train(server.address, "gpt", rounds=1)
    server.stop(within_s=60)
    shutil.rmtree(data / "meta")
    done = run(ballastd, *ON_LOOPBACK, "--data-dir", data, env=supervisor.variables)
    assert done.returncode == 4, done.stderr
    assert "4" in unit()["Service"]["RestartPreventExitStatus"].split()
    assert supervisor.words()[:2] == ["STATUS=starting", "STATUS=replaying"]
    assert says_why(supervisor, done).startswith("STATUS=failed to start, exit code 4: ")


def says_why(supervisor: Supervisor, done: subprocess.CompletedProcess[str]) -> str:
    """The last word of a server that never served: its error, on one line."""
    words = supervisor.words()
    assert not {"READY=1", "STOPPING=1"} & set(words), words
    error = next(line for line in done.stderr.splitlines() if line.startswith("ballastd: "))
    assert words[-1].partition(": ")[2].startswith(error.removeprefix("ballastd: "))
    return words[-1]


@pytest.mark.parametrize("flags, exit_code, cause", [
    (["--sett", "x=1"], 2, "unknown flag --sett"),
    (["--set", "rounds.chunk_bytes=lots"], 2, "rounds.chunk_bytes"),
    (["--config", "/nowhere/ballastd.yaml"], 2, "/nowhere/ballastd.yaml"),
    (["--listen", "127.0.0.1:{taken}"], 1, "127.0.0.1:"),
    (["--listen", "127.0.0.1:0", "--peers-file", "{peers}"], 1, "peers"),
])
def test_a_server_that_cannot_start_says_why(
        flags, exit_code, cause, ballastd, tmp_path, supervisor):
    (tmp_path / "peers").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as other:
        names = {"peers": tmp_path / "peers", "taken": other.getsockname()[1]}
        done = run(ballastd, *(flag.format(**names) for flag in flags), env=supervisor.variables)
    assert done.returncode == exit_code, done.stderr
    said = says_why(supervisor, done)
    assert said.startswith(f"STATUS=failed to start, exit code {exit_code}: ") and cause in said


def test_a_server_that_is_ended_before_it_serves_was_never_ready(
        start_server, tmp_path, supervisor):
    server = start_server(*ON_LOOPBACK, "--peers-file", str(tmp_path / "peers.json"),
                          **supervisor.variables)
    assert server.stop(within_s=60) == 0
    assert supervisor.words() == ["STATUS=starting", "STATUS=stopping"]


@pytest.mark.parametrize("name, value", [("NOTIFY_SOCKET", "notify"), ("WATCHDOG_USEC", "60s")])
def test_a_wrong_variable_is_refused_before_anything_is_made(
        name, value, ballastd, tmp_path, supervisor):
    data = tmp_path / "data"
    variables = {**supervisor.variables, name: value}
    done = run(ballastd, *ON_LOOPBACK, "--data-dir", data, env=variables)
    assert done.returncode == 2
    assert f'{name} is "{value}", but must be' in done.stderr
    assert not data.exists()


def test_a_supervisor_that_is_gone_costs_a_line_in_the_log(start_server):
    server = start_server(*ON_LOOPBACK, NOTIFY_SOCKET="/nowhere/socket", WATCHDOG_USEC="20000")
    server.wait_until_serving()
    assert server.stop(within_s=60) == 0
    assert server.log().count('at NOTIFY_SOCKET="/nowhere/socket" does not hear us') == 1


def test_servers_of_a_launcher_do_not_speak_for_it(ballastd, tmp_path, supervisor):
    """ballast-run as a service of its own: its servers come and go while it lives."""
    script = tmp_path / "script.py"
    script.write_text("print('trained')")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BALLAST_")}
    done = run(sys.executable, "-m", "ballast.run", "--servers", "1", "--nproc", "1", script, env={
        **kept, **supervisor.variables, "BALLAST_BALLASTD": str(ballastd),
        "PYTHONPATH": str(REPO / "client" / "python")})
    assert done.returncode == 0 and "trained" in done.stdout, done.stderr
    assert supervisor.listen() == []
