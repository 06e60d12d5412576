"""docs/migrating-from-zero-offload.md: its commands run in order, as a newcomer types them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs" / "migrating-from-zero-offload.md"


def blocks():
    """The commands of each section, in the order of the page."""
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_the_first_commands_name_what_the_clone_has():
    first = blocks()[0]
    assert "./scripts/setup.sh" in first and (REPO / "scripts/setup.sh").exists()
    assert "source .venv/bin/activate" in first
    project = (REPO / "client/python/pyproject.toml").read_text()
    for program in ("ballast-report", "ballast-run", "ballast-zero-to-fp32"):
        assert program in PAGE.read_text() and f'\n{program} = "' in project


@pytest.mark.slow
def test_the_commands_of_the_page_run_one_after_the_other(ballastd, tmp_path):
    programs = f"{ballastd.parent}:{Path(sys.executable).parent}"
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("BALLAST_")},
        "BALLAST_BALLASTD": str(ballastd),
        "HOME": str(tmp_path),
        "CLONE": str(REPO),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    text = "\n".join(blocks()[1:])
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], env=environ, cwd=tmp_path,
                          capture_output=True, text=True, check=False, timeout=540)  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "ds_config.json, read as DeepSpeed 0.19.8: 10 honoured by service" in done.stdout
    assert "\n> import ballast.deepspeed as deepspeed\n" in done.stdout
    assert "[0] from nothing: after 20 steps the loss is" in done.stdout
    assert "\nglobal_step20" in done.stdout
    assert "from checkpoints/global_step20: after 30 steps the loss is" in done.stdout
    assert "server 1 ended by SIGKILL; starting it again" in done.stderr
    assert "[0] from checkpoints/global_step30: after 200 steps the loss is" in done.stdout
    assert (tmp_path / "migrate" / "checkpoints" / "model.safetensors").is_file()
