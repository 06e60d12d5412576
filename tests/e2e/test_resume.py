"""Processes of ballast-run die, and examples/resume.py ends with the bits of a calm run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import matrix_trainer
from e2e.cluster import HANG_S, wait_for
from e2e.test_durable import round_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "resume.py"
STEPS = 600


@contextlib.contextmanager
def example(folder: Path, ballastd: Path, *options: object) -> Iterator[subprocess.Popen]:
    """ballast-run of the example with two trainers; gone at the end."""
    command = [sys.executable, "-m", "ballast.run", "--nproc", 2, "--data-dir", folder,
               "--server-binary", ballastd, *options]  # fmt: skip
    child = subprocess.Popen(
        list(map(str, command)),
        env=matrix_trainer.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.terminate()
        child.communicate()


def finish(child: subprocess.Popen) -> tuple[set[str], str]:
    """The trainers' output at the end, and all of stderr."""
    out, err = child.communicate(timeout=2 * HANG_S)
    assert child.returncode == 0, err
    return {line[4:] for line in out.splitlines()}, err


@pytest.fixture(scope="module")
def calm(ballastd, tmp_path_factory) -> str:
    """The last line of an undisturbed run."""
    with example(tmp_path_factory.mktemp("calm"), ballastd, EXAMPLE, STEPS) as child:
        said, err = finish(child)
    (line,) = said
    assert line.startswith(f"after {STEPS} rounds the weights have crc ")
    assert "restart" not in err and "resumed" not in err
    return line


def told(path: Path) -> dict:
    """The contents of a file of the launcher; {} while it does not exist."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}


def strike(folder: Path, kind: str, number: int) -> None:
    """kill -9 of "trainer" or "server", and waits for the process that takes its place."""
    path = folder / "run" / f"{'ready' if kind == 'server' else kind}-{number}.json"
    wait_for(lambda: "pid" in told(path), f"{kind} {number}")
    pid = told(path)["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: told(path).get("pid", pid) != pid, "the next process")


@pytest.mark.parametrize("servers, seed", [(1, 1), (2, 2)])
def test_trainers_and_servers_killed_while_it_trains(ballastd, tmp_path, calm, servers, seed):
    generator = random.Random(seed)
    victims = [("trainer", 1), ("server", 0), ("trainer", 0), ("trainer", 1)]
    at = sorted(generator.sample(range(20, STEPS - 100), len(victims)))
    options = ["--servers", servers, "--max-restarts", 3]
    with example(tmp_path, ballastd, *options, EXAMPLE, STEPS) as child:
        for (kind, number), first in zip(victims, at, strict=True):
            wait_for(lambda: round_of(tmp_path) >= first or child.poll() is not None, "the round")
            assert child.poll() is None, child.communicate()
            strike(tmp_path, kind, number)
        said, err = finish(child)
    assert said == {calm}, err
    again = "ended by SIGKILL; starting it again in its seat (restart"
    assert err.count(again) == 3 and "(restart 3 of 3)" in err
    assert err.count(": resumed at round ") == 3
    assert "trainer 1 was started again and takes part from epoch" in err
    assert "trainer 1 was let in after" in err


def test_both_trainers_and_the_server_killed_at_once(ballastd, tmp_path, calm):
    with example(tmp_path, ballastd, "--max-restarts", 2, EXAMPLE, STEPS) as child:
        wait_for(lambda: round_of(tmp_path) >= 100 or child.poll() is not None, "round 100")
        for name in ("trainer-0", "trainer-1", "ready-0"):
            os.kill(told(tmp_path / "run" / f"{name}.json")["pid"], signal.SIGKILL)
        said, err = finish(child)
    assert said == {calm}, err
    assert err.count(": resumed at round ") == 2


def test_a_run_that_has_ended_is_gone_on_with(ballastd, tmp_path, calm):
    options = ["--servers", 2, "--job", "longer", EXAMPLE]
    with example(tmp_path, ballastd, *options, STEPS // 3) as child:
        said, _ = finish(child)
    assert said != {calm}
    with example(tmp_path, ballastd, *options, STEPS) as child:
        said, err = finish(child)
    assert said == {calm}, err
    assert err.count(f"job longer: resumed at round {STEPS // 3 + 1} (") == 2


def test_an_interrupted_run_is_gone_on_with(ballastd, tmp_path, calm):
    options = ["--job", "longer", EXAMPLE, STEPS]
    with example(tmp_path, ballastd, *options) as child:
        wait_for(lambda: round_of(tmp_path) >= 50 or child.poll() is not None, "round 50")
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=HANG_S)
        assert child.returncode == 130
    with example(tmp_path, ballastd, *options) as child:
        said, err = finish(child)
    assert said == {calm}, err
    assert err.count("job longer: resumed at round ") == 2
