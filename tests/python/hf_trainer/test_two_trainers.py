"""Trainer in two processes: Accelerate wraps the model in DDP, and the result is that of torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ballast.launcher.trainers import free_port
from real_training import CLIENT
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("two_trainers.py")


def run(endpoints, *arguments, job="hf", code=0, world=2):
    """Trainers, as torchrun would start them; returns the first one's output."""
    environ = {**os.environ, "PYTHONPATH": str(CLIENT), "BALLAST_ENDPOINTS": ",".join(endpoints),
               "BALLAST_JOB": job, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
               "OMP_NUM_THREADS": "1"}  # fmt: skip
    trainers = [
        subprocess.Popen([sys.executable, SCRIPT, *map(str, arguments)],
                         env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(world)
    ]  # fmt: skip
    said = [trainer.communicate(timeout=300) for trainer in trainers]
    assert [t.returncode for t in trainers] == [code] * world, "".join(err for _, err in said)
    return said[0][0]


@pytest.mark.slow
def test_two_killed_trainers_resume_to_the_bits_of_ddp_and_one_continues(tmp_path, start_servers):
    endpoints = start_servers(2)
    two, one = tmp_path / "two", tmp_path / "one"
    run(endpoints, two, 4, job="first", code=3)
    shutil.copytree(two, one)
    assert "2 6 DistributedDataParallel" in run(endpoints, two, 6, "resume", job="second")
    ours, theirs = (load_file(two / who / "model.safetensors") for who in ("ballast", "torch"))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    assert "1 6 " in run(endpoints, one, 6, "resume", job="one", world=1)
