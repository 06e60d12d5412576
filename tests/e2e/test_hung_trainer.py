"""A trainer of a durable job that hangs is told of by the others, and by itself once it wakes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from e2e import hung_trainer
from e2e.cluster import Trainers, fresh_job, wait_for

# It is noticed soon, and its seat stays its own.
NERVOUS = {
    "BALLAST_TIMING_HEARTBEAT_INTERVAL": "100ms",
    "BALLAST_TIMING_REPORT_AFTER": "500ms",
    "BALLAST_TIMING_LEASE": "60s",
}


@pytest.mark.parametrize("hung", [0, 1])
def test_the_other_tells_of_it_and_it_tells_of_itself(start_cluster, tmp_path, capsys, hung):
    cluster, job, other = start_cluster(2, **NERVOUS), fresh_job(), 1 - hung
    arguments = [",".join(cluster.endpoints), job, "2", str(hung)]
    client = Path(__file__).resolve().parents[2] / "client" / "python"
    own_words = tmp_path / "stderr"
    heard = ""

    def says(pattern: str) -> bool:
        nonlocal heard
        heard += capsys.readouterr().err
        return re.search(pattern, heard) is not None

    def it_says(pattern: str) -> bool:
        return re.search(pattern, own_words.read_text()) is not None

    p = torch.nn.Parameter(torch.ones(1000))
    p.grad = torch.ones_like(p)
    with own_words.open("w") as stderr, ThreadPoolExecutor(1) as pool, subprocess.Popen(
        [sys.executable, hung_trainer.__file__, *arguments],
        env={**os.environ, "PYTHONPATH": str(client)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        options = {"tile_elements": 65536, "extent_elements": 1048576, "durability": "process"}
        trainers = Trainers(cluster, {other: [("w", p)]}, job, world=2, **options)
        (opt,) = trainers.optimizers

        def rounds_to(last: int) -> None:
            while opt.round < last:
                opt.step()

        try:
            rounds_to(3)
            rounds = pool.submit(rounds_to, 10**9)
            process.send_signal(signal.SIGSTOP)
            mark = "" if other == 0 else f"rank {other}: "
            away = (
                rf"ballast: {mark}trainer {hung} is away \(no heartbeat for 500ms\); "
                "training waits"
            )
            wait_for(lambda: says(away), f"word of trainer {hung}")
            at = opt.round
            process.send_signal(signal.SIGCONT)
            back = rf"ballast: {mark}trainer {hung} is back after [\d.]+ s; round \d+ goes on"
            wait_for(lambda: says(back), "word of its return")
            wait_for(lambda: opt.round > at + 3, "more rounds")
            mark = "" if hung == 0 else f"rank {hung}: "
            woke = (
                rf"ballast: {mark}server [01] \(127.0.0.1:\d+\) had heard nothing of this trainer "
                r"for 500ms and has hung up; was this process stopped, or its machine too busy\?"
            )
            wait_for(lambda: it_says(woke), "its own words")
            wait_for(lambda: it_says(rf"ballast: {mark}server [01] is back after"), "its return")
            assert "again" not in own_words.read_text().replace("Connecting again", "")
            assert not rounds.done(), rounds.exception()
        finally:
            process.kill()
            trainers.abandon()
