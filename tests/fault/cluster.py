"""A kill storm's cluster: supervision, an account of every end, and progress.

Comes from: kill_storm.py. Goes to: the processes of processes.py. Thread safety: one thread.
"""

from __future__ import annotations

import argparse
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from processes import FENCED, FINISHED, STORAGE_ERROR, TRY_AGAIN, WRONG, Process, Server, Trainer

POLL_S = 0.002
# Whoever waits longer than this hangs.
HANG_S = 90.0


class Red(Exception):
    """The storm has found something; the text says what."""


class Cluster:
    """All processes, with their supervision, their progress, and an account of every end."""

    def __init__(self, options: argparse.Namespace, folder: Path, rng: random.Random) -> None:
        self.options, self.folder, self.rng = options, folder, rng
        build = Path(options.bin)
        # Room for five of the reference's extents: the fewest but one.
        settings = ["storage.dram_budget=120KiB"] if options.tier == "nvme" else []
        if options.snapshots:
            settings.append(f"storage.snapshot_dir={folder / 'snapshots'}")
        self.servers = [
            Server(build / "bin" / "ballastd", i, folder, folder / f"data-{i}", settings)
            for i in range(options.servers)
        ]
        self.trainers = [
            Trainer(build / "tests" / "fault_trainer", slot, folder)
            for slot in range(options.trainers)
        ]
        self.zombies: list[Trainer] = []
        self.failpoints_hit: dict[str, int] = {}
        self.armed: dict[str, str] = {}  # by server's name: the failpoint it shall die at
        self.forgiven: set[str] = set()  # servers whose disk is at fault right now
        self.by_hand: list[str] = []
        self.damaged: Server | None = None  # whose files were damaged while it was down
        self.noticed = ""  # who refused what because of that
        self.storage_failures = 0
        self.kills = 0
        self.fenced = 0
        self.beside: Callable[[], None] = lambda: None  # what else is to be looked after

    def everyone(self) -> list[Process]:
        return [*self.servers, *self.trainers]

    # --- Supervision

    def pump(self) -> None:
        """One look at every process: who ended is accounted for and started again when due."""
        self.beside()
        for process in self.everyone():
            if process.child is not None and not process.alive():
                self.account(process, process.child.returncode)
                process.child = None
                process.start_at = time.monotonic() + self.rng.choice((0, 0.02, 0.1, 0.4))
            if process.child is None and process.wanted and time.monotonic() >= process.start_at:
                process.start()
        for zombie in [z for z in self.zombies if not z.alive()]:
            self.zombies.remove(zombie)
            if zombie.child.returncode not in (FENCED, -signal.SIGKILL):
                raise Red(f"a zombie of {zombie.name} was not fenced: {zombie.child.returncode}")
            self.fenced += zombie.child.returncode == FENCED

    def account(self, process: Process, code: int) -> None:
        failpoint = self.armed.get(process.name)
        if process.killed:
            return
        if failpoint is not None and code == -signal.SIGKILL:
            del self.armed[process.name]
            self.failpoints_hit[failpoint] = self.failpoints_hit.get(failpoint, 0) + 1
            self.kills += 1
        elif process.name in self.forgiven and code in (1, STORAGE_ERROR):
            self.storage_failures += 1
        elif isinstance(process, Trainer) and code == FINISHED:
            process.wanted = False
        elif isinstance(process, Trainer) and code == TRY_AGAIN:
            pass
        elif isinstance(process, Trainer) and code == WRONG:
            raise Red(f"{process.name}: {tail(process.output())}")
        elif self.damaged is not None and (words := self.refusal(process)):
            self.noticed = words
        else:
            self.by_hand.append(f"{process.name} ended by itself with {code}")
            raise Red(f"{self.by_hand[-1]}; {tail(self.folder / (process.name + '.err'))}; "
                      f"{tail(process.output())}")

    def refusal(self, process: Process) -> str:
        """The named error that a process ended with after damage; nothing when it is none."""
        if process is self.damaged:
            words = process.last_words()
            named = "STATE_LOST" in words or str(process.data) in words or "job \"" in words
            return words if process.child.returncode in (1, 4) and named else ""
        words = tail(process.output(), 1)
        return words if words.startswith("error ") and "UNSPECIFIED" not in words else ""

    def wait(self, condition: Callable[[], bool], what: str, limit_s: float = HANG_S) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            self.pump()
            if time.monotonic() > deadline:
                raise Red(f"waited {limit_s:.0f} s for {what}")
            time.sleep(POLL_S)

    def pass_time(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.pump()
            time.sleep(POLL_S)

    # --- Strikes

    def kill(self, *victims: Process) -> None:
        for victim in victims:
            self.kills += victim.kill()
            victim.start_at = 0.0

    def arm(self, server: Server, terms: str, failpoint: str) -> None:
        """Starts a server anew so that it dies at `failpoint`; `terms` says how."""
        self.kill(server)
        server.failpoints = terms
        self.armed[server.name] = failpoint

    def stop_servers(self) -> None:
        for process in [*self.everyone(), *self.zombies]:
            process.wanted = False
            process.kill()

    # --- Progress

    def round(self) -> int:
        return max((trainer.done() for trainer in self.trainers), default=0)

    def await_rounds(self, more: int = 2) -> float:
        """Until every trainer has seen rounds that began after now; returns the seconds it took."""
        begin, base = time.monotonic(), self.round()
        self.wait(lambda: min(t.done() for t in self.trainers) >= base + more,
                  f"round {base + more}, the state is {[t.done() for t in self.trainers]}")
        return time.monotonic() - begin


def tail(path: Path, lines: int = 3) -> str:
    text = path.read_text(errors="replace").splitlines() if path.exists() else []
    return " | ".join(text[-lines:]) or "(empty)"
