"""bench/kernel_bench refuses invalid counts before it loads or measures anything."""

import subprocess
import sys

import pytest
from serving import REPO


@pytest.mark.parametrize(
    "flag, value",
    [("--repeats", "0"), ("--elements", "0"), ("--elements", "-5"), ("--repeats", "1.5"),
     ("--elements", str(2**40 + 1)), ("--elements", "9" * 30), ("--repeats", "many")],
)  # fmt: skip
def test_a_count_out_of_range_is_named_with_its_limit(flag, value):
    run = subprocess.run(
        [sys.executable, str(REPO / "bench" / "kernel_bench"), "--no-torch", flag, value],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (run.returncode, run.stdout) == (2, "")
    said = f"argument {flag}: {value!r}: must be a whole number in 1..{2**40}"
    assert said in run.stderr and "Traceback" not in run.stderr, run.stderr
