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
def test_trainer_on_two_trainers_continues_on_one(tmp_path, start_servers):
    servers = {"BALLAST_ENDPOINTS": ",".join(start_servers(1))}
    two, script = tmp_path / "hostfile", EXAMPLES / "hf_trainer.py"
    two.write_text("localhost slots=2\n")  # with one the launcher takes servers that run already
    said = run(["-m", "ballast.run", "--hostfile", two, script, tmp_path, 10], **servers)
    assert re.search(r"\[0\] after 10 steps the loss is \d\.\d", said)
    said = run([script, tmp_path, 12], **servers, BALLAST_JOB="second")
    assert "after 12 steps the loss is " in said


@pytest.mark.slow
def test_a_second_run_of_the_engine_continues(tmp_path, start_servers):
    servers = {"BALLAST_ENDPOINTS": ",".join(start_servers(1))}
    script, folder = EXAMPLES / "deepspeed_engine.py", tmp_path / "saved"
    run([script, folder, 10], **servers, BALLAST_JOB="first")
    said = run([script, folder, 12], **servers, BALLAST_JOB="second")
    assert "after 12 steps the loss is " in said
    assert f"from {folder}/global_step10, with a loss of " in said
