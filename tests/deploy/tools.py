"""Where the tools are that read the files of deploy/ as their users' machines do.

Comes from: build/tools and .venv, both made by scripts/setup.sh. Goes to: every test here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
DEPLOY = REPO / "deploy"
# A run of one of them that takes this long hangs.
HANG_S = 60.0


def tool(name: str) -> Path:
    """The path of promtool, prometheus or the old kubectl."""
    path = REPO / "build" / "tools" / name
    assert path.is_file(), f"no {path}; scripts/setup.sh unpacks it"
    return path


def kubectls() -> dict[str, Path]:
    """The oldest kubectl whose kustomize must read deploy/kubernetes, and a present one."""
    new = Path(sys.executable).parent / "kubectl"
    assert new.is_file(), f"no {new}; scripts/setup.sh installs it"
    return {"old": tool("kubectl"), "new": new}


def run(*command: str | Path, cwd: Path = REPO, env: dict[str, str] | None = None,
        text: str | None = None, within_s: float = HANG_S) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; never raises for its exit code."""
    return subprocess.run(list(map(str, command)), cwd=cwd, env=env, input=text, text=True,
                          capture_output=True, timeout=within_s, check=False)
