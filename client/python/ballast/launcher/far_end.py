"""Runs one trainer on another host, at the far end of an ssh connection.

Comes from: launcher.far_child, which starts `python -m ballast.launcher.far_end` there. Goes to:
the user's script. Standard input brings one line of JSON, {"command", "cwd", "env"}, and then lines
"signal N"; its end means that the launcher is gone, and ends the trainer. Standard output and error
are the trainer's. Linux only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

from ballast.launcher import process

# ssh's code for an ended connection, which therefore cannot be a trainer's exit code.
SSH_FAILED = 255
_GRACE_S = 10.0


class _Orders:
    """Reads the launcher's orders on a thread of its own."""

    def __init__(self, source: BinaryIO, child: process.Child) -> None:
        self._source = source
        self._child = child
        self.cut = threading.Event()  # the launcher is gone

    def listen(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for line in iter(self._source.readline, b""):
            word, _, number = line.decode(errors="replace").strip().partition(" ")
            if word == "signal" and number.isdigit() and 0 < int(number) < signal.NSIG:
                self._child.send(int(number))
        self.cut.set()


def main(source: BinaryIO | None = None) -> int:
    """Returns the trainer's exit code; 1 for SSH_FAILED, and where it cannot be started."""
    orders_from = sys.stdin.buffer if source is None else source
    host = os.uname().nodename
    try:
        spec = json.loads(orders_from.readline())
    except ValueError:
        return _failed(f"{host}: no order came over the connection")
    try:
        os.chdir(spec["cwd"])
        child = process.Child(spec["command"], _environment(spec["env"]))
    except OSError as error:
        return _failed(
            f"{host}: {error.filename}: {error.strerror}; every host needs the same directories "
            "and the same Python (BALLAST_PYTHON)"
        )
    orders = _Orders(orders_from, child)
    orders.listen()
    while not child.ended():
        if orders.cut.is_set():
            process.stop([child], signal.SIGTERM, _GRACE_S)
        time.sleep(process.POLL_S)
    return 1 if child.code() == SSH_FAILED else child.code()


def _environment(given: dict[str, str]) -> dict[str, Any]:
    env = {**os.environ, **given}
    cores = len(os.sched_getaffinity(0))
    env.setdefault("OMP_NUM_THREADS", str(max(1, cores // int(given["LOCAL_WORLD_SIZE"]))))
    return env


def _failed(text: str) -> int:
    print(f"ballast-run: {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    # Without the shutdown of Python: the thread that reads holds the lock of standard input.
    code = main()
    sys.stdout.flush()
    os._exit(code)
