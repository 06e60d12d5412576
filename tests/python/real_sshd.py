"""A real sshd on loopback: Debian's, as the present user, with keys of its own in a folder.

Comes from: test_run_ssh.py. Goes to: build/tools/sshd, which scripts/setup.sh unpacks, and the
machine's ssh. The machine's accounts, keys and services are left alone: libnss_wrapper shows sshd
two accounts, the present user's with a home in the folder, and the one that it drops its rights to.
As root sshd wants an empty folder /run/sshd, which is made and stays.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from ballast.launcher.trainers import free_port
from launching import CLIENT

TOOLS = CLIENT.parents[1] / "build" / "tools"
LIBRARIES = ("libwrap.so.0", "libnss_wrapper.so")
USER = "ballast-test"
START_S = 60.0
ATTEMPTS = 20


class Sshd:
    """A running sshd; use as a context. `command` is the ssh that reaches it, by any name."""

    def __init__(self, folder: Path) -> None:
        for name in ("sshd", *LIBRARIES):
            assert (TOOLS / name).is_file(), f"no {TOOLS / name}; scripts/setup.sh unpacks it"
        self._folder = folder
        self._log = folder / "sshd.log"
        for name in ("host", "user"):
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(key, check=True)
        self._write_accounts()
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)

    def __enter__(self) -> Sshd:
        for _ in range(ATTEMPTS):
            self.port = free_port()
            if self._started():
                self.command = self._client("config", self.port)
                return self
        raise AssertionError(f"sshd does not start: {self._log.read_text()}")

    def __exit__(self, *_: object) -> None:
        for pid in self.sessions():
            os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def dead(self) -> str:
        """An ssh to a port on which nothing listens."""
        return self._client("dead", 1)

    def sessions(self) -> list[int]:
        """The processes that hold connections: what sshd has started."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def _write_accounts(self) -> None:
        user, group = os.geteuid(), os.getegid()
        (self._folder / "passwd").write_text(
            f"{USER}:*:{user}:{group}::{self._folder}:/bin/sh\nsshd:*:65533:65533::/:/bin/false\n"
        )
        (self._folder / "group").write_text(f"{USER}:x:{group}:\nsshd:x:65533:\n")
        (self._folder / "sshd_config").write_text(
            f"HostKey {self._folder}/host\nAuthorizedKeysFile {self._folder}/user.pub\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\n"
            f"SetEnv PYTHONPATH={CLIENT}\n"
        )

    def _started(self) -> bool:
        """Whether it listens; False where another process has taken the port."""
        command = [str(TOOLS / "sshd"), "-D", "-e", "-f", str(self._folder / "sshd_config"),
                   "-o", "ListenAddress=127.0.0.1", "-p", str(self.port)]  # fmt: skip
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(TOOLS),
            "LD_PRELOAD": str(TOOLS / "libnss_wrapper.so"),
            "NSS_WRAPPER_PASSWD": str(self._folder / "passwd"),
            "NSS_WRAPPER_GROUP": str(self._folder / "group"),
        }
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while "Server listening" not in self._log.read_text():
            if self._process.poll() is not None:
                assert "Address already in use" in self._log.read_text(), self._log.read_text()
                return False
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)
        return True

    def _client(self, name: str, port: int) -> str:
        key = (self._folder / "host.pub").read_text()
        (self._folder / "known").write_text(f"* {key}")
        config = self._folder / name
        config.write_text(
            f"Host *\nHostName 127.0.0.1\nPort {port}\nUser {USER}\n"
            f"IdentityFile {self._folder}/user\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {self._folder}/known\nStrictHostKeyChecking yes\n"
        )
        return shlex.join(["ssh", "-F", str(config)])


if __name__ == "__main__":
    with Sshd(Path(sys.argv[1])) as running:
        print(running.command, flush=True)
        signal.pause()
