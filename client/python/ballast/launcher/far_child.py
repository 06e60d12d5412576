"""A trainer on another host, as a child process here: the ssh that leads to it.

Comes from: launcher.trainers. Goes to: ssh, launcher.far_end. A signal travels as a line, because a
signal to ssh would only cut the connection. When this side dies, the connection ends, and with it
the trainer.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ballast.launcher import process
from ballast.launcher.servers import LaunchError

# A dead host is noticed 30 s after its last sign of life.
_OPTIONS = (
    "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=10",
    "-o", "ServerAliveCountMax=3",
)  # fmt: skip
# Variables that go along. The rest of the environment is the other host's own.
_PREFIXES = (
    "BALLAST_", "ACCELERATE_", "NCCL_", "GLOO_", "TORCH_", "OMP_", "MKL_", "HF_", "PYTHON",
)  # fmt: skip
_NAMES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
# The most that a pipe can be made to hold without privileges.
_ORDER_BYTES_MAX = 1 << 20
# Room for signals after the order.
_SIGNALS_BYTES = 1 << 10
_KILL_S = 1.0


def carried(env: Mapping[str, str]) -> dict[str, str]:
    """The part of a trainer's environment that goes to another host."""
    return {k: v for k, v in env.items() if k in _NAMES or k.startswith(_PREFIXES)}


class FarChild(process.Child):
    """As process.Child. The exit code is the trainer's; far_end.SSH_FAILED where ssh has none."""

    def __init__(
        self, ssh: Sequence[str], host: str, command: Sequence[str], env: Mapping[str, str],
        **streams: Any,
    ) -> None:  # fmt: skip
        """Starts `command` on `host`, in a directory with the same path as this one. The first word
        of `command` is a Python of that host. ssh: the program and its arguments. LaunchError for
        an order too long to send, OSError when ssh cannot be started."""
        there = shlex.join(["exec", command[0], "-m", "ballast.launcher.far_end"])
        order = json.dumps({"command": list(command), "cwd": os.getcwd(), "env": carried(env)})
        if len(order) >= _ORDER_BYTES_MAX:
            raise LaunchError(
                f"arguments and variables of a trainer on {host} have {len(order)} bytes, more "
                f"than the limit of {_ORDER_BYTES_MAX}; shorten them"
            )
        super().__init__(
            [*ssh, *_OPTIONS, "--", host, there], os.environ, stdin=subprocess.PIPE, **streams
        )
        self._make_room(min(len(order) + _SIGNALS_BYTES, _ORDER_BYTES_MAX))
        self._tell(order)

    def send(self, signum: int) -> None:
        """Has the trainer's process group get the signal, unless it has ended. After SIGKILL the
        connection ends, too, at the latest after some seconds."""
        if self.ended():
            return
        self._tell(f"signal {signum:d}")
        if signum == signal.SIGKILL:
            with contextlib.suppress(OSError):
                self.stdin.close()
            deadline = time.monotonic() + _KILL_S
            while not self.ended() and time.monotonic() < deadline:
                time.sleep(process.POLL_S)
            super().send(signal.SIGKILL)

    def _make_room(self, count: int) -> None:
        """Has the pipe to ssh hold `count` bytes, so that nothing here waits for a host that does
        not answer.

        The kernel gives the pages of a user's pipes out to a limit (fs.pipe-user-pages-soft) and
        refuses beyond. The pipe then keeps its size, and a longer order waits until ssh reads it
        or, after ConnectTimeout, ends.
        """
        if fcntl.fcntl(self.stdin, fcntl.F_GETPIPE_SZ) < count:
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(self.stdin, fcntl.F_SETPIPE_SZ, count)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # ssh has ended
            self.stdin.write(line.encode() + b"\n")
            self.stdin.flush()
