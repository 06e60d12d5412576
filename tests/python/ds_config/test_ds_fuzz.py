"""The fuzz target of the ds_config reader: its corpus, a short run, a minute under `-m long`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGET = ROOT / "tests" / "fuzz" / "ds_config_fuzz.py"
RUNS = 1000


def fuzzed(folder, *options, program=TARGET):
    """A run of the target. Input that ends it badly is left in `folder` and named in its output."""
    command = [sys.executable, str(program), "-seed=1", f"-artifact_prefix={folder}/", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
def test_a_short_run_finds_nothing(tmp_path):
    done = fuzzed(tmp_path, f"-runs={RUNS}")
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reader", "said"),
    [
        ("raise KeyError(3)", "KeyError"),
        ("raise DsConfigError(str(config), 9, 1, 'no')", "AssertionError"),
        ("raise DsConfigError(str(config), 0, 0, 'no')", "AssertionError"),
    ],
)
def test_a_reader_with_a_defect_is_found(tmp_path, reader, said):
    """The target itself can fail: here it has a reader that raises a forbidden error."""
    text = TARGET.read_text().replace("parents[2]", f"parents[0].joinpath({str(ROOT)!r})")
    broken = f"def check(config, world):\n    {reader}\n\n\nCORPORA = ("
    program = tmp_path / "broken.py"
    program.write_text(text.replace("CORPORA = (", broken, 1))
    done = fuzzed(tmp_path, f"-runs={RUNS}", program=program)
    assert done.returncode != 0 and said in done.stdout + done.stderr


@pytest.mark.long
def test_a_minute_finds_nothing(tmp_path):
    done = fuzzed(tmp_path, "-max_total_time=60")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done " in done.stderr
    print(done.stderr.splitlines()[-1])
