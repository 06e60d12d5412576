"""Rehearses one stage of the GPU kit, for the tests of the kit.

Comes from: test_gpu_kit_*.py. Goes to: a process with the stand-in for CUDA and build/release.
"""

import json
import os
import subprocess
import sys

from serving import REPO, built_ballastd


def rehearse(folder, *python, **environ):
    """The lines of a stage, by the name of their check; a failed one fails the test."""
    built = built_ballastd()
    standin = built.parent.parent / "tests" / "libcuda_standin.so"
    assert standin.exists(), "build the target cuda_standin; it needs nvcc (scripts/setup.sh)"
    done = subprocess.run(
        [sys.executable, *python, "--cpu", "--folder", folder / "kit"],
        text=True, capture_output=True,
        env={**os.environ, "BALLAST_BALLASTD": str(built), "BALLAST_KIT_STANDIN": str(standin),
             "PYTHONPATH": f"{REPO / 'tests'}:{REPO / 'client' / 'python'}", **environ},
    )  # fmt: skip
    lines = [json.loads(line[6:]) for line in done.stdout.splitlines() if line[:6] == "CHECK "]
    failed = [line for line in lines if line["state"] == "failed"]
    assert lines and not failed, f"{failed}\n{done.stdout}\n{done.stderr}"
    return {line["check"]: line for line in lines}


def with_name(lines, *parts):
    """The lines whose name has all of the parts."""
    return [line for name, line in lines.items() if all(part in name for part in parts)]
