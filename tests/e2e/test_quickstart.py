"""The quickstart itself, short: its JSON, its exit code, its picture."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart" / "quickstart.py"
KEYS = """differing_bits steps servers trainers loss_first loss_last loss_torch_last bytes_up
bytes_down round_ms_p50 durability kills pauses_ms""".split()


def quickstart(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(QUICKSTART), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "avx2"},
    )


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_quickstart_reports_zero_differing_bits_as_one_json_object(tmp_path, dtype):
    run = quickstart("--steps", "2", "--dtype", dtype, "--json", "--out", str(tmp_path))
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads(run.stdout)
    assert set(KEYS) <= set(result)
    assert result["differing_bits"] == 0
    assert result["loss_last"] == result["loss_torch_last"] < result["loss_first"]
    assert result["bytes_up"] > 0 and result["bytes_down"] > 0
    assert (tmp_path / "quickstart-loss.png").stat().st_size > 1000
    assert (result["kills"], result["pauses_ms"]) == ([], [])


def test_chaos_kills_both_servers_and_no_bit_differs(tmp_path):
    run = quickstart("--steps", "6", "--chaos", "--json", "--out", str(tmp_path))
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads(run.stdout)
    assert (result["differing_bits"], result["durability"]) == (0, "power")
    assert [(k["kind"], k["number"]) for k in result["kills"]] == [("server", 1), ("server", 0)]
    assert len(result["pauses_ms"]) == 2
    for server in (0, 1):
        assert f"quickstart: kill -9 of server {server}" in run.stderr
        assert f"ballast: server {server} is back after" in run.stderr


def test_bad_flags_end_with_usage_and_code_2():
    without = ["--chaos", "--durability", "none"]
    for bad in (["--steps", "0"], ["--dtype", "fp8"], ["--nonsense"], without):
        run = quickstart(*bad)
        assert run.returncode == 2
        assert run.stdout == ""
        assert "usage" in run.stderr
