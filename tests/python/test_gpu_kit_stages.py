"""The GPU kit's stages "bits", "order" and "sanitizer", rehearsed on the stand-in for CUDA.

A rehearsal has fewer rounds, and leaves out cases that need a device: side streams, CUDA graphs,
and faults of order, which have the state "not run".
"""

import json
import os
import pathlib
import stat
import subprocess
import sys

import pytest
import torch

from serving import REPO, built_ballastd

sys.path.insert(0, str(REPO / "tests"))

from gpu_kit.models import differing_bits  # noqa: E402

pytestmark = pytest.mark.slow

RUN_S = 600
NEED_A_DEVICE = {
    "side streams", "a CUDA graph replayed between steps", "step() and attach() in a capture",
    "the fault early_gradient is noticed", "the fault early_hand_over is noticed",
    "the fault early_read is noticed",
}  # fmt: skip


@pytest.fixture
def rehearse(tmp_path):
    """rehearse(stage, **variables) -> its checks by name, from a run to its end."""
    build = pathlib.Path(built_ballastd()).parent.parent
    standin = build / "tests" / "libcuda_standin.so"
    assert standin.exists(), "build the target cuda_standin; it needs nvcc (scripts/setup.sh)"
    environ = {
        "BALLAST_KIT_STANDIN": str(standin),
        "BALLAST_KIT_BIN": str(build / "tests"),
        "BALLAST_KIT_LIB": str(build / "lib"),
        "BALLAST_BALLASTD": str(built_ballastd()),
        "PYTHONPATH": os.pathsep.join([str(REPO / "tests"), str(REPO / "client" / "python")]),
    }

    def run(stage: str, **variables: str) -> dict[str, dict]:
        ended = subprocess.run(
            [sys.executable, "-m", f"gpu_kit.{stage}", "--cpu", "--seconds", str(RUN_S),
             "--folder", tmp_path / f"{stage}-{len(list(tmp_path.iterdir()))}"],
            env={**os.environ, **environ, **variables}, text=True, timeout=RUN_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout
        lines = [line[6:] for line in ended.stdout.splitlines() if line.startswith("CHECK ")]
        return {check["check"]: check for check in map(json.loads, lines)}

    return run


def states(checks: dict[str, dict]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, check in checks.items():
        found.setdefault(check["state"], set()).add(name)
    return found


def test_bits_are_those_of_the_host_and_a_lost_unpack_is_noticed(rehearse):
    checks = rehearse("bits")
    found = states(checks)
    assert "failed" not in found, {name: checks[name]["said"] for name in found["failed"]}
    ours = {name for name in found["passed"] if name.startswith("bits of the host: ")}
    assert len(ours) == 12
    assert all(checks[name]["differing_bits"] == 0 for name in ours)
    assert any(checks[name]["skipped"] > 0 for name in ours), "no round overflowed"
    assert checks["an unpack that is lost is noticed"]["differing_bits"] > 0
    assert checks["device tests notice a lost unpack"]["failures"] > 0


def test_order_is_rehearsed_but_for_what_needs_a_device(rehearse):
    checks = rehearse("order")
    found = states(checks)
    assert "failed" not in found, {name: checks[name]["said"] for name in found["failed"]}
    assert found["not run"] == NEED_A_DEVICE
    assert checks["the bits after the kills are those of a calm job"]["differing_bits"] == 0
    assert sum(name.startswith("a trainer is killed ") for name in found["passed"]) == 4
    assert checks["the fault lost_unpack=3 is noticed"]["differing_bits"] > 0


# Runs the command after the options, and says what it has found.
SANITIZER = """#!/bin/bash
tool=$2; shift 6
while [[ $1 == --target-* || $1 == --report-* ]]; do shift 2; done
"$@" || exit
if [[ $tool == racecheck ]]; then
  echo "========= RACECHECK SUMMARY: $FOUND hazards displayed (0 errors, 0 warnings)"
else
  echo "========= ERROR SUMMARY: $FOUND errors"
fi
[[ $FOUND == 0 ]] || exit 9
"""


@pytest.mark.parametrize("found, state", [("0", "passed"), ("3", "failed")])
def test_findings_of_a_sanitizer_are_counted(rehearse, tmp_path, found, state):
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(SANITIZER)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    checks = rehearse("sanitizer", PATH=path, FOUND=found)
    tools = ("memcheck", "racecheck", "initcheck")
    over_tests = [f"{tool} over the device tests" for tool in tools]
    for name in (*over_tests, "memcheck over three rounds of a trainer"):
        assert checks[name]["state"] == state, checks[name]
        assert checks[name]["findings"] == int(found)


def test_differing_bits_are_counted_in_every_dtype():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        ones = torch.ones(3, 5, dtype=dtype)
        assert differing_bits(ones, ones.t().contiguous().t()) == 0
        other = ones.clone()
        other[2, 4] = -1
        assert differing_bits(ones, other) == 1
    nans = torch.full((4,), float("nan"))
    assert differing_bits(nans, nans.clone()) == 0
    assert differing_bits(torch.tensor(0.0), torch.tensor(-0.0)) == 1
