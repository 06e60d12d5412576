"""A server's exports in each state of its life are text in which promtool finds no fault."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ballast
from ballast.control import Control
from deploy.server import ON_LOOPBACK, Server
from deploy.tools import HANG_S, REPO, run, tool
from deploy.training import train

PAGE_BYTES = 4096
# Of headers in a file of images (docs/formats/images.md).
MAGICS = (b"BALLSLF\n", b"BALLSLT\n")
ENDS = 5
JOBS = 64
LONGEST_NAME = 128  # common/text/names.cc
SCRAPE_BYTES = 1_000_000


def faults(text: str) -> str:
    """What promtool says of a scrape."""
    done = run(tool("promtool"), "check", "metrics", text=text)
    return f"{done.returncode} {done.stdout}{done.stderr}"


NONE = "0 "


@contextlib.contextmanager
def trainer(server: Server, job: str) -> Iterator[subprocess.Popen[str]]:
    """A process that trains round after round; killed at the end."""
    script = REPO / "tests" / "e2e" / "hung_trainer.py"
    process = subprocess.Popen([sys.executable, script, server.address, job, "1", "0"],
                               stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_it_rests(server: Server, job: str) -> None:
    """Until the job's record on disk says so."""
    deadline = time.monotonic() + HANG_S
    control = Control([server.address], patience_s=HANG_S)
    while control.job(job)["state"] != "resting":
        assert time.monotonic() < deadline, f"{job} does not rest"
        time.sleep(0.02)


def damage_images(data: Path) -> None:
    """Turns a bit around in every page of state."""
    (images,) = data.glob("jobs/*/slots")
    content = bytearray(images.read_bytes())
    for at in range(0, len(content), PAGE_BYTES):
        page = content[at:at + PAGE_BYTES]
        if any(page) and not page.startswith(MAGICS):
            content[at] ^= 1
    images.write_bytes(content)


def scrape_while_it_ends(server: Server) -> str:
    """/metrics between SIGTERM and the end; empty when the end came first."""
    os.kill(server.pid, signal.SIGTERM)
    with contextlib.suppress(urllib.error.URLError, ConnectionError):
        while server.get("/readyz")[0] == 200:
            pass
        return server.get("/metrics")[1]
    return ""


def test_a_fault_is_found():
    assert faults('ballast_x_total{run="a} 1\n') != NONE
    assert faults("# TYPE ballast_x_total counter\nballast_x_total 1\n") != NONE, "it has no HELP"


def test_of_a_fresh_server(start_server):
    server = start_server(*ON_LOOPBACK)
    assert faults(server.get("/metrics")[1]) == NONE, "it may wait for peers"
    server.wait_until_serving()
    assert faults(server.get("/metrics")[1]) == NONE


def test_of_a_server_with_a_job(start_server, tmp_path):
    server = start_server(*ON_LOOPBACK, "--data-dir", str(tmp_path / "data"))
    server.wait_until_serving()
    with trainer(server, "gpt"):
        text = server.get("/metrics")[1]
    assert 'ballast_trainers{tenant="default",run="gpt",state="active"} 1\n' in text
    assert faults(text) == NONE


def test_of_a_server_with_many_jobs_stays_small(start_server):
    """As many as one server may be expected to have, with the longest names that jobs may have."""
    server = start_server(*ON_LOOPBACK)
    server.wait_until_serving()
    names = [f"{number:03}" + "n" * (LONGEST_NAME - 3) for number in range(JOBS)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: train(server.address, name, 1, durability="none"), names))
    text = server.get("/metrics")[1]
    assert set(re.findall(r'^ballast_rounds_total\{\S*run="(\w+)",result="committed"\} 1$', text,
                          re.M)) == set(names)
    assert len(text.encode()) < SCRAPE_BYTES
    assert faults(text) == NONE


def test_of_a_server_whose_disk_has_lost_a_job(start_server, tmp_path):
    arguments = (*ON_LOOPBACK, "--data-dir", str(tmp_path / "data"))
    server = start_server(*arguments)
    server.wait_until_serving()
    train(server.address, "gpt", rounds=6)
    wait_until_it_rests(server, "gpt")
    server.kill()
    damage_images(tmp_path / "data")
    again = start_server(*arguments)
    again.wait_until_serving()
    with pytest.raises(ballast.BallastError, match="STATE_LOST"):
        train(again.address, "gpt", rounds=1, resume="must")
    text = again.get("/metrics")[1]
    assert re.search(r'^ballast_checksum_errors_total\{where="image"\} [1-9]', text, re.M), text
    assert 'run="gpt"' not in text, "a job that could not be opened has no series"
    assert faults(text) == NONE


def test_of_a_server_that_ends(start_server, tmp_path):
    """A stopped trainer keeps its stream; the server's end waits for it for a moment."""
    for attempt in range(ENDS):
        server = start_server(*ON_LOOPBACK, "--data-dir", str(tmp_path / str(attempt)))
        server.wait_until_serving()
        with trainer(server, "gpt") as process:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            text = scrape_while_it_ends(server)
        if text:
            break
    assert 'ballast_trainers{tenant="default",run="gpt"' in text
    assert faults(text) == NONE
