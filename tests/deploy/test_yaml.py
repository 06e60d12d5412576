"""yamllint over every YAML file of the tree, with the rules of .yamllint.yaml.

Comes from: pytest. Goes to: yamllint. Thread safety: one process.
"""

import subprocess
from pathlib import Path

from deploy.packages import program

REPO = Path(__file__).resolve().parents[2]
FOLDERS = ["configs", "deploy"]


def yamllint(*paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("yamllint"), "--strict", "-c", REPO / ".yamllint.yaml", *paths],
                          text=True, capture_output=True, check=False, timeout=120)


def test_yamllint_finds_nothing():
    # Templates of the Helm chart are YAML only once Helm has filled them.
    files = [path for folder in FOLDERS for path in (REPO / folder).rglob("*.y*ml")
             if path.parent.name != "templates"]
    assert len(files) > 20
    done = yamllint(*files)
    assert done.returncode == 0, done.stdout


def test_yamllint_finds_a_key_that_is_there_twice(tmp_path: Path):
    worse = tmp_path / "worse.yaml"
    worse.write_text((REPO / "configs/server-dev.yaml").read_text() + "\nlog: {}\nlog: {}\n")
    done = yamllint(worse)
    assert done.returncode != 0
    assert "duplication of key" in done.stdout
