"""A hung trainer of a durable job is reported by the others, and by itself once it wakes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import ballast.torch as bt
from e2e import hung_trainer
from e2e.cluster import Cluster, Trainers, fresh_job, wait_for

# It is noticed soon, and its seat stays its own.
NERVOUS = {
    "BALLAST_TIMING_HEARTBEAT_INTERVAL": "100ms",
    "BALLAST_TIMING_REPORT_AFTER": "500ms",
    "BALLAST_TIMING_LEASE": "60s",
}
TILES = {"tile_elements": 65536, "extent_elements": 1048576}


class Words:
    """The output of the trainer of one rank. `read` returns all of it."""

    def __init__(self, read: Callable[[], str], rank: int) -> None:
        self.read = read
        self._mark = "" if rank == 0 else f"rank {rank}: "

    def await_words(self, pattern: str) -> None:
        """Waits for a line with this after the name of the program and the rank."""
        line = f"ballast: {self._mark}{pattern}"
        wait_for(lambda: re.search(line, self.read()) is not None, line)


def captured(capsys: pytest.CaptureFixture) -> Callable[[], str]:
    """Reads all that this process has printed to stderr so far."""
    pieces = []

    def read() -> str:
        pieces.append(capsys.readouterr().err)
        return "".join(pieces)

    return read


@contextlib.contextmanager
def process_of(cluster: Cluster, job: str, slot: int, words: Path) -> Iterator[subprocess.Popen]:
    """A trainer as a process, which takes rounds until it is killed; `words` gets its stderr."""
    client = Path(__file__).resolve().parents[2] / "client" / "python"
    arguments = [",".join(cluster.endpoints), job, "2", str(slot)]
    with words.open("w") as stderr, subprocess.Popen(
        [sys.executable, hung_trainer.__file__, *arguments],
        env={**os.environ, "PYTHONPATH": str(client)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def rounds_of(cluster: Cluster, job: str, slot: int) -> Iterator[bt.AdamW]:
    """A trainer in this process. It has taken three rounds and takes more in the background."""
    p = torch.nn.Parameter(torch.ones(1000))
    p.grad = torch.ones_like(p)
    trainers = Trainers(cluster, {slot: [("w", p)]}, job, world=2, durability="process", **TILES)
    (opt,) = trainers.optimizers

    def rounds_to(last: int) -> None:
        while opt.round < last:
            opt.step()

    with ThreadPoolExecutor(1) as pool:
        try:
            rounds_to(3)
            rounds = pool.submit(rounds_to, 10**9)
            yield opt
            assert not rounds.done(), rounds.exception()
        finally:
            trainers.abandon()


@pytest.mark.parametrize("hung", [0, 1])
def test_the_other_tells_of_it_and_it_tells_of_itself(start_cluster, tmp_path, capsys, hung):
    cluster, job, other = start_cluster(2, **NERVOUS), fresh_job(), 1 - hung
    others, own = Words(captured(capsys), other), Words((tmp_path / "stderr").read_text, hung)
    with process_of(cluster, job, hung, tmp_path / "stderr") as process, rounds_of(
        cluster, job, other
    ) as opt:
        process.send_signal(signal.SIGSTOP)
        others.await_words(
            rf"trainer {hung} is away \(no heartbeat for 500ms\); training waits"
        )
        at = opt.round
        process.send_signal(signal.SIGCONT)
        others.await_words(rf"trainer {hung} is back after [\d.]+ s; round \d+ continues")
        wait_for(lambda: opt.round > at + 3, "more rounds")
        own.await_words(
            r"server [01] \(127.0.0.1:\d+\) had heard nothing of this trainer for 500ms and has "
            r"hung up; was this process stopped, or its machine too busy\?"
        )
        own.await_words("server [01] is back after")
        assert "again" not in own.read().replace("Connecting again", "")
