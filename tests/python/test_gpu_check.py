"""scripts/gpu_check.sh without a GPU, and its report where nvidia-smi shows one."""

import os
import pathlib
import subprocess
import sys

from serving import REPO

SCRIPT = REPO / "scripts" / "gpu_check.sh"


def program(folder: pathlib.Path, name: str, body: str) -> pathlib.Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def run(folder: pathlib.Path, **environ: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        [SCRIPT], env={**os.environ, "PATH": path, **environ}, text=True, capture_output=True
    )


def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    program(tmp_path, "nvidia-smi", "exit 9")
    done = run(tmp_path)
    assert done.returncode == 0
    assert done.stdout == (
        "gpu_check: no NVIDIA GPU on this host (nvidia-smi shows none); nothing was run\n"
    )


def test_with_one_the_report_has_gpu_versions_and_every_result(tmp_path):
    program(tmp_path, "nvidia-smi", "echo 'H100, 580.1, 81559 MiB'")
    program(tmp_path, "ctest", "echo 100% tests passed, 0 tests failed out of 1")
    program(tmp_path, "compute-sanitizer", "echo '[  PASSED  ] 12 tests.'")
    said = "case $1 in -c) echo 2.13.0 CUDA 13.0;; bench/*) echo weights verified: passed;; "
    python = program(tmp_path, "python", said + "*) exit 3;; esac")
    done = run(tmp_path, BALLAST_BUILD=str(tmp_path), BALLAST_PYTHON=str(python))
    assert done.returncode == 1, "pytest has failed"
    for line in (
        "    torch 2.13.0 CUDA 13.0", "    GPU H100, 580.1, 81559 MiB",
        "### ctest -L gpu: passed", "    100% tests passed, 0 tests failed out of 1",
        "### pytest -m gpu: FAILED (3)", "### compute-sanitizer: passed",
        "### copies and steps: passed", "    weights verified: passed",
    ):  # fmt: skip
        assert line in done.stdout.splitlines()


def test_a_run_in_which_all_is_skipped_has_not_passed(tmp_path):
    program(tmp_path, "nvidia-smi", "echo H100")
    program(tmp_path, "ctest", "echo 100% tests passed, 0 tests failed out of 1")
    python = program(tmp_path, "python", "echo 5 skipped in 0.1s")
    done = run(tmp_path, BALLAST_BUILD=str(tmp_path), BALLAST_PYTHON=str(python))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "### pytest -m gpu: FAILED (nothing ran)" in lines
    assert "### compute-sanitizer: not installed, nothing was run" in lines


def test_without_a_build_it_names_the_next_step(tmp_path):
    program(tmp_path, "nvidia-smi", "echo H100")
    done = run(tmp_path, BALLAST_BUILD=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "run scripts/setup.sh first" in done.stderr


def test_the_measurement_says_in_one_line_that_there_is_no_gpu():
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    bench = [sys.executable, REPO / "bench" / "gpu_bench.py"]
    done = subprocess.run(bench, text=True, capture_output=True, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "gpu_bench: no NVIDIA GPU on this host; nothing was measured\n"
