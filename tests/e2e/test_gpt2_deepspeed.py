"""The unchanged DeepSpeed script of gpt2/, in DeepSpeed: Ballast's bits, the recorded answers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ballast.launcher.trainers import free_port
from e2e import matrix_trainer
from e2e.gpt2 import record_deepspeed, run
from e2e.gpt2.net import Case
from e2e.test_gpt2_three_ways import SHORT, train  # noqa: F401  (a fixture)

RECORDER = Path(record_deepspeed.__file__)
pytestmark = pytest.mark.deepspeed


def in_deepspeed(*arguments: object) -> str:
    found = importlib.util.find_spec("deepspeed")
    if found is None or found.origin is None:
        pytest.skip("DeepSpeed is not installed")
    folder = Path(found.origin).parents[1]
    environ = {**matrix_trainer.environment(), "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, RECORDER, folder, *map(str, arguments)], env=environ,
        capture_output=True, text=True, timeout=500, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("windows", [{}, SHORT], ids=["each", "windows"])
def test_fp32_has_the_bits_of_the_script_in_deepspeed(train, tmp_path, windows):  # noqa: F811
    case = Case(**windows)
    in_deepspeed("--fused", tmp_path, *windows.values())
    assert train("deepspeed", case).differing_bits(run.Log.read(tmp_path)) == 0


def test_the_recorded_answers_are_deepspeeds():
    assert "0 differ" in in_deepspeed()
