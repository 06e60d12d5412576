"""One ballastd that strangers talk to: started with a limit of descriptors, watched over its pages.

Comes from: tests of strangers' input. Goes to: a process on loopback.
"""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from e2e.cluster import wait_for


class OneServer:
    """Stops with the `with` block; `ended_well` says whether it was still alive then."""

    def __init__(
        self,
        binary: Path,
        folder: Path,
        *flags: str,
        descriptors: int | None = None,
        **environment: str,
    ) -> None:
        self.binary = binary
        self._ready = folder / "ready.json"
        self._log = folder / "server.log"
        command = [str(binary), "--data-dir", str(folder / "data"), *flags]
        command += ["--ready-file", str(self._ready)]

        def limit() -> None:
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stderr=log, env={**os.environ, **environment}, preexec_fn=limit
            )
        wait_for(lambda: self._ready.exists() or self.process.poll() is not None, "a server")
        told = json.loads(self._ready.read_text())
        self.endpoint: str = told["address"]
        self.endpoints = [self.endpoint]
        self.admin: str = told["admin"]

    def __enter__(self) -> OneServer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024

    @property
    def cpu_s(self) -> float:
        """Seconds of CPU that the process has used, of all its threads."""
        after_name = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    def connect(self, source: str = "") -> socket.socket:
        """A new connection; from `source`, an address of this machine, where one is given."""
        host, port = self.endpoint.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0))

    def page(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.admin}/{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, series: str) -> float:
        """The value of a series, `name` or `name{label="x"}`; 0 while there is none."""
        for line in self.page("metrics")[1].splitlines():
            if line.startswith(f"{series} "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def refused(self, reason: str) -> float:
        return self.metric(f'ballast_connections_refused_total{{reason="{reason}"}}')

    def status(self, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """`ballastctl status`, which opens a new connection."""
        return self.ctl("status", timeout_s=timeout_s)

    def ctl(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        command = [str(self.binary.parent / "ballastctl"), *arguments]
        return subprocess.run(
            [*command, "--endpoint", self.endpoint],
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
