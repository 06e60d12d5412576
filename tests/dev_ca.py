"""Certificates of scripts/dev-ca.sh.

Comes from: tests of servers with TLS. Goes to: scripts/dev-ca.sh.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_SCRIPT = Path(__file__).resolve().parents[1] / "scripts/dev-ca.sh"


def dev_ca(folder: Path, servers: int, *options: object) -> Path:
    """A new authority with all pairs in `folder`, which is returned. servers: how many there are.

    An existing authority in the folder stays, and signs the missing pairs.
    """
    made = subprocess.run(
        [_SCRIPT, "--servers", str(servers), *map(str, options), folder],
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert made.returncode == 0, made.stderr
    return folder
