"""The GPU kit's program copy_rate on the stand-in for CUDA: a lost frame is seen."""

import json
import subprocess

import pytest

from serving import built_ballastd

PLANS = ("1:65536:8:4:65536", "2:65536:8:4:512", "3:131072:4:3:131072")


def copy_rate(*arguments):
    tests = built_ballastd().parent.parent / "tests"
    library = tests / "libcuda_standin.so"
    assert library.exists(), "build the target cuda_standin; it needs nvcc (scripts/setup.sh)"
    return subprocess.run(
        [tests / "copy_rate", library, *arguments], text=True, capture_output=True
    )


@pytest.mark.parametrize("lose", [0, 1])
def test_each_plan_is_measured_and_verified(lose):
    done = copy_rate("1048576", "2", str(lose), *PLANS)
    assert done.returncode == 0, done.stderr
    of = [json.loads(line) for line in done.stdout.splitlines()]
    assert [plan["dtype"] for plan in of] == ["fp32", "bf16", "fp16"]
    assert [plan["piece"] for plan in of] == [65536, 512, 131072]
    # Frames are examined before and after the measuring; both times the same one is lost.
    assert all((plan["differing"] > 0) == bool(lose) for plan in of)
    for way in ("up", "down", "both"):
        assert all(rate > 0 for plan in of for rate in plan[way].values())


@pytest.mark.parametrize(
    "plan", ["", "4:65536:8:4:65536", "1:65536:4:4:65536", "1:0:8:4:64", "1:65536:8:4"]
)
def test_a_plan_that_is_none_is_wrong_usage(plan):
    done = copy_rate("1048576", "2", "0", plan)
    assert done.returncode == 2 and done.stderr.startswith("usage: copy_rate LIBRARY")


def test_a_cuda_part_that_is_not_there_is_named():
    tests = built_ballastd().parent.parent / "tests"
    done = subprocess.run(
        [tests / "copy_rate", tests / "none.so", "65536", "1", "0", PLANS[0]], text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 1 and "none.so" in done.stderr
