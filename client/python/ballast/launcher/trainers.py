"""The trainer processes of one ballast-run: environment, start, supervision.

Comes from: ballast.run. Goes to: the user's script, launcher.output; run/trainer-<rank>.json of the
data directory, {"rank", "pid", "restarts"}, and trainer-<rank>.end of a script that fails for good.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ballast import _exit_reason
from ballast.launcher import output, process
from ballast.launcher.far_child import FarChild
from ballast.launcher.far_end import SSH_FAILED
from ballast.launcher.hostfile import Seat
from ballast.launcher.program import Program
from ballast.launcher.servers import write_atomically

FAILURE_GRACE_S = 5.0
STOP_S = 10.0
_JOIN_S = 2.0


def environment(
    base: Mapping[str, str],
    rank: int,
    world: int,
    *,
    endpoints: Sequence[str],
    admin: Sequence[str],
    job: str,
    master_port: int,
    restarts: bool = False,
    master_addr: str = "127.0.0.1",
    seat: Seat | None = None,
) -> dict[str, str]:
    """A trainer's environment: torchrun's variables and BALLAST_*.

    OMP_NUM_THREADS stays when set, else the host's cores are shared out among its trainers.
    CUDA_VISIBLE_DEVICES: the slots that --include or --exclude have left, if they name some.
    restarts: a failed trainer is restarted, so its job must be resumable.
    seat: where it runs; None: all run here.
    """
    seat = seat or Seat(rank, None, rank, world)
    cores = len(os.sched_getaffinity(0))
    stale = ("BALLAST_RANK", "BALLAST_SLOT", "BALLAST_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    env = {k: v for k, v in base.items() if k not in stale}
    if seat.devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, seat.devices))
    elif seat.host is not None:
        env.pop("CUDA_VISIBLE_DEVICES", None)  # ours
    if seat.host is None:
        env.setdefault("OMP_NUM_THREADS", str(max(1, cores // seat.local_world)))
    if restarts:
        env.setdefault("BALLAST_RESUME", "auto")
    env.update(
        RANK=str(rank),
        LOCAL_RANK=str(seat.local_rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(seat.local_world),
        MASTER_ADDR=master_addr,
        MASTER_PORT=str(master_port),
        BALLAST_ENDPOINTS=",".join(endpoints),
        BALLAST_JOB=job,
        BALLAST_ADMIN=",".join(admin),
        PYTHONUNBUFFERED="1",
    )
    return env


def free_port() -> int:
    """A recently free port, for torch.distributed's rendezvous."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Trainers:
    """N processes of the program; use start(), then stop()."""

    def __init__(
        self,
        program: Program,
        prefix: bool,
        run_dir: Path,
        hosts: Mapping[int, str] = MappingProxyType({}),
        ssh: Sequence[str] = ("ssh",),
    ) -> None:
        """hosts: by rank, those that do not run here. ssh: the program that leads to them, and its
        arguments. BALLAST_PYTHON names their Python, if it is not of this one's path."""
        self._program = program
        self._hosts = hosts
        self._ssh = ssh
        self._prefix = prefix
        self._run_dir = run_dir
        self._environments: list[Mapping[str, str]] = []
        self._restarts: list[int] = []
        self._pumps: list[threading.Thread] = []
        self.children: list[process.Child] = []

    def start(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Starts one process per environment; without prefix they inherit our streams."""
        self._environments = list(environments)
        self._restarts = [0] * len(self._environments)
        for rank in range(len(self._environments)):
            self.children.append(self._spawn(rank))

    def restart(self, rank: int) -> None:
        """Starts the trainer of `rank`, which has ended, with the same environment and prefix."""
        self._restarts[rank] += 1
        self.children[rank] = self._spawn(rank)

    def _spawn(self, rank: int) -> process.Child:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if self._prefix else {}
        with contextlib.suppress(OSError):
            self._end_file(rank).unlink(missing_ok=True)
        child = self._started(rank, streams)
        if self._prefix:
            mark = f"[{rank}] ".encode()
            self._pumps.append(output.forward(child.stdout, sys.stdout.buffer, mark))
            self._pumps.append(output.forward(child.stderr, sys.stderr.buffer, mark))
        told = {"rank": rank, "pid": child.pid, "restarts": self._restarts[rank]}
        if rank in self._hosts:
            told["host"] = self._hosts[rank]  # and pid is that of ssh
        # For people and scripts that look; a full disk is no reason to end the run.
        with contextlib.suppress(OSError):
            write_atomically(self._run_dir / f"trainer-{rank}.json", json.dumps(told))
        return child

    def _started(self, rank: int, streams: Mapping[str, Any]) -> process.Child:
        env = self._environments[rank]
        if rank in self._hosts:
            python = env.get("BALLAST_PYTHON") or sys.executable
            command = self._program.command(python)
            return FarChild(self._ssh, self._hosts[rank], command, env, **streams)
        env = {**env, _exit_reason.VARIABLE: str(self._end_file(rank))}
        command = self._program.command(sys.executable)
        if self._program.stdin is None:
            return process.Child(command, env, **streams)
        with self._program.stdin.open("rb") as script:
            return process.Child(command, env, stdin=script, **streams)

    def name(self, rank: int) -> str:
        """The trainer's name in texts, with its host unless it runs on this machine."""
        return f"trainer {rank}" + (f" on {self._hosts[rank]}" if rank in self._hosts else "")

    def how_ended(self, rank: int) -> str:
        """How the trainer of `rank`, which has failed, ended."""
        code = self.children[rank].code()
        if rank in self._hosts and code == SSH_FAILED:
            return f"is lost: ssh cannot reach {self._hosts[rank]} (exit code {code})"
        return f"ended with exit code {code}"

    def why_hopeless(self, rank: int) -> str | None:
        """Why the trainer of `rank`, which has failed, would fail again; None: it may not."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            told = json.loads(self._end_file(rank).read_text())
            if told["pid"] == self.children[rank].pid:
                return f"{told['reason']}: {told['text']}"
        return self._program.why_hopeless()  # It never came to telling us.

    def _end_file(self, rank: int) -> Path:
        return self._run_dir / f"trainer-{rank}.end"

    def failed(self) -> int | None:
        """The rank of the first trainer that ended with an error, or None."""
        for rank in process.by_end(self.children):
            if self.children[rank].ended() and self.children[rank].code():
                return rank
        return None

    def ended_well(self, rank: int) -> bool:
        """Whether the trainer of `rank` has ended with exit code 0. Any thread."""
        return rank < len(self.children) and self.children[rank].ended_well

    def running(self) -> bool:
        return not all(c.ended() for c in self.children)

    def stop(self, signum: int, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ends all trainers and forwards the rest of their output."""
        process.stop(self.children, signum, STOP_S, hurry)
        for pump in self._pumps:
            pump.join(_JOIN_S)
