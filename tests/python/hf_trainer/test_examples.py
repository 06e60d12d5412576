"""The examples of DeepSpeed, Accelerate, Lightning and Trainer run as their first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from real_training import CLIENT
from serving import REPO, built_ballastd

EXAMPLES = REPO / "examples"


def run(command, **more):
    environ = {**os.environ, "PYTHONPATH": str(CLIENT), "BALLAST_BALLASTD": str(built_ballastd()),
               **more}  # fmt: skip
    done = subprocess.run([sys.executable, *map(str, command)],
                          env=environ, capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def on_two(script, *arguments):
    """Two trainers on a server of their own."""
    return run(["-m", "ballast.run", "--nproc", "2", EXAMPLES / script, *arguments])


@pytest.mark.slow
def test_accelerate_on_two_trainers():
    assert "[0] after 12 steps the loss is 0." in on_two("accelerate_loop.py", 12)


@pytest.mark.slow
def test_lightning():
    assert "after 12 steps the loss is 0." in run(
        ["-m", "ballast.run", EXAMPLES / "lightning_module.py", 12])  # fmt: skip


@pytest.mark.slow
def test_trainer_on_two_trainers(tmp_path):
    said = on_two("hf_trainer.py", tmp_path, 10)
    assert re.search(r"\[0\] after 10 steps the loss is \d\.\d", said)
    assert (tmp_path / "checkpoint-10" / "optimizer.pt").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("script", ["hf_trainer.py", "deepspeed_engine.py"])
def test_a_second_run_continues(tmp_path, start_servers, script):
    servers = {"BALLAST_ENDPOINTS": ",".join(start_servers(1))}
    folder = tmp_path / "saved"
    run([EXAMPLES / script, folder, 10], **servers, BALLAST_JOB="first")
    said = run([EXAMPLES / script, folder, 12], **servers, BALLAST_JOB="second")
    assert "after 12 steps the loss is " in said
    if script == "deepspeed_engine.py":
        assert f"from {folder}/global_step10, with a loss of " in said
