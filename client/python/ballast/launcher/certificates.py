"""Certificates of one ballast-run --tls: a new authority, its servers' and its trainers'.

Comes from: ballast.run. Goes to: dev-ca.sh, which needs openssl; launcher.servers, and variables of
trainers.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ballast.launcher.servers import LaunchError, UsageError

_SCRIPT = Path(__file__).with_name("dev-ca.sh")
_TIMEOUT_S = 60.0


class Certificates:
    """Files in a directory, made when they are not there."""

    def __init__(self, folder: Path, servers: int, host: str) -> None:
        """host: the address that the servers listen on. LaunchError with openssl's words."""
        self.folder = folder
        if shutil.which("openssl") is None:
            raise UsageError("--tls needs openssl: apt-get install openssl")
        command = ["bash", str(_SCRIPT), "--servers", str(servers), "--host", host, str(folder)]
        made = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if made.returncode != 0:
            raise LaunchError(f"--tls: no certificates could be made: {made.stderr.strip()}")

    def of_trainers(self) -> dict[str, str]:
        """Variables of trainers, and of ballastctl."""
        return {
            "BALLAST_TLS_CA": str(self.folder / "ca.pem"),
            "BALLAST_TLS_CERT": str(self.folder / "trainer-default.pem"),
            "BALLAST_TLS_KEY": str(self.folder / "trainer-default.key"),
        }
