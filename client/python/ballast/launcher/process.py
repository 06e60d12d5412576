"""Child processes in their own process groups, ended by signal and then by force.

Comes from: launcher.servers, launcher.trainers, ballast.run. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
# Looked up here, since nothing may be looked up between fork and exec once there are threads.
_prctl = ctypes.CDLL(None).prctl


def _end_with(parent: int) -> Callable[[], None]:
    # Runs in the child before exec: if ballast-run is killed, the kernel ends its children. The
    # second look is for a parent that died before this call.
    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return prepare


class Child:
    """A process in its own group. Leftover processes of the group end with it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **streams: Any) -> None:
        """Starts `command`, without standard input unless `streams` has one. To be called by the
        main thread: the kernel ends the child when the thread that started it ends.

        streams: stdin, stdout, stderr and pass_fds, as for subprocess.Popen. OSError when it cannot
        start.
        """
        self._popen = subprocess.Popen(
            list(command),
            env=dict(env),
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()),
            **{"stdin": subprocess.DEVNULL, **streams},
        )
        self.stdin = self._popen.stdin
        self.stdout = self._popen.stdout
        self.stderr = self._popen.stderr
        self._swept = False
        # When it ended, by time.monotonic(): tells which of several was the first. By a thread,
        # because processes that fail of one cause end closer together than a poll sees.
        self.ended_at = math.inf
        self._watcher = threading.Thread(target=self._note_end, daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ended(self) -> bool:
        """Whether it has ended. The first call that finds it ended also kills leftovers in its
        group."""
        if self._popen.poll() is None:
            return False
        self._watcher.join()
        if not self._swept:
            # At once: later the number of the group may belong to another process.
            self._swept = True
            self._signal_group(signal.SIGKILL)
        return True

    @property
    def ended_well(self) -> bool:
        """Whether ended() has seen it end with exit code 0. Any thread."""
        return self._popen.returncode == 0

    def _note_end(self) -> None:
        with contextlib.suppress(ChildProcessError):  # poll() was first
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        self.ended_at = time.monotonic()

    def code(self) -> int:
        """The shell's exit code of an ended child: 128 + signal when a signal ended it."""
        code = self._popen.returncode
        return 128 - code if code < 0 else code

    def send(self, signum: int) -> None:
        """Sends a signal to the whole process group, unless the child has ended."""
        if not self.ended():
            self._signal_group(signum)

    def wait(self) -> None:
        self._popen.wait()
        self.ended()

    def _signal_group(self, signum: int) -> None:
        try:
            os.killpg(self._popen.pid, signum)
        except (ProcessLookupError, PermissionError):
            pass


def by_end(children: Sequence[Child]) -> list[int]:
    """The numbers of all children in the order in which they ended, those that run at the end."""
    ends = [child.ended_at if child.ended() else math.inf for child in children]
    return sorted(range(len(children)), key=ends.__getitem__)


def stop(
    children: Iterable[Child],
    signum: int,
    kill_after_s: float,
    hurry: Callable[[], bool] = lambda: False,
) -> None:
    """Signals all running children, waits, and kills the rest after `kill_after_s`, or at once when
    `hurry` says so. Returns when all have ended."""
    children = list(children)
    for child in children:
        child.send(signum)
    deadline = time.monotonic() + kill_after_s
    while not all(c.ended() for c in children):
        if time.monotonic() > deadline or hurry():
            break
        time.sleep(POLL_S)
    for child in children:
        child.send(signal.SIGKILL)
        child.wait()
