"""Contestants that take turns: their processes, the turns, and the verdict on the numbers.

Comes from: peers.py (the GPU kit's stage) and bench/peers_bench.py. Goes to: peer_step.py, one
process for each contestant. All of them live at once and only one trains, so the noise of a shared
machine hits all alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ballast
import gpu_kit
from ballast.launcher.servers import LaunchError, Servers
from gpu_kit import place
from gpu_kit.peer_model import Sizes

CLOSE_S = 5.0
LOG_TAIL = 12
SAID_MAX = 700
# At every step, of the loss of torch's own contestant: bf16 rounds each of its sums to 0.4 %.
LOSS_TOLERANCE = 0.01


OURS = [str(Path(module.__file__).resolve().parents[1]) for module in (gpu_kit, ballast)]


class PeerFailed(Exception):
    """A contestant ended, or did not answer in time; the text says what it said last."""


@dataclasses.dataclass
class Peer:
    """A way to train. kind: of peer_contestants.KINDS; site: a folder of packages for it; environ:
    in addition to this process's; pinned: whether FSDP2 offloads to pinned memory, its default;
    faulty: a Ballast that loses every gradient, planted to be noticed."""

    name: str
    kind: str
    durability: str = ""
    python: str = sys.executable
    site: str = ""
    pinned: bool = True
    faulty: bool = False
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Rig:
    """What all contestants of one comparison have in common. threads 0: torch's choice."""

    sizes: Sizes
    device: str
    folder: Path
    learning_rate: float = 3e-4
    threads: int = 0
    servers: int = 1
    standin: str = ""


class Contestant:
    """The process of one peer. Use start(), then ask(); close() ends it."""

    def __init__(self, peer: Peer, rig: Rig) -> None:
        self.peer, self.rig = peer, rig
        self.losses: list[float] = []
        self.turns: dict[int, float] = {}  # seconds of a step, by round
        self.split: dict[str, Any] = {}
        self.memory: dict[str, Any] = {}
        self.built: dict[str, Any] = {}
        self.hello: dict[str, Any] = {}
        self._ends = contextlib.ExitStack()
        self._servers: Servers | None = None
        self._process: subprocess.Popen | None = None
        self._failed = ""
        self._folder = rig.folder / peer.name.replace(" ", "-")

    def start(self) -> None:
        """Starts the process, which imports its modules; does not wait for it.

        Where that fails, listen() says so.
        """
        try:
            self._start()
        except (LaunchError, OSError) as error:
            self._failed = str(error)

    def _start(self) -> None:
        self._folder.mkdir(parents=True)
        spec = {
            "kind": self.peer.kind, "sizes": dataclasses.asdict(self.rig.sizes),
            "device": self.rig.device, "lr": self.rig.learning_rate, "threads": self.rig.threads,
            "folder": str(self._folder), "durability": self.peer.durability,
            "pinned": self.peer.pinned, "faulty": self.peer.faulty,
        }  # fmt: skip
        if self.peer.kind == "ballast":
            self._servers = self._ends.enter_context(
                place.servers(self._folder / "servers", self.rig.servers)
            )
            spec |= {"endpoints": self._servers.addresses, "standin": self.rig.standin,
                     "job": place.fresh_job("peers")}  # fmt: skip
        path = os.pathsep.join(filter(None, [self.peer.site, *OURS, os.environ.get("PYTHONPATH")]))
        environ = {**os.environ, "PYTHONPATH": path, **self.peer.environ}
        self._log = self._ends.enter_context(open(self._folder / "log", "w+"))
        self._process = subprocess.Popen(
            [self.peer.python, "-m", "gpu_kit.peer_step", json.dumps(spec)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environ,
        )  # fmt: skip

    def listen(self, seconds: float) -> dict[str, Any]:
        """The next answer. PeerFailed."""
        if self._process is None:
            raise PeerFailed(self._failed)
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(max(seconds, 0.0)):
                self._process.send_signal(signal.SIGUSR1)  # Its stacks go to its log.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.5)
                raise PeerFailed(f"no answer within {seconds:.0f} s; {self._said_last()}")
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise PeerFailed(f"{answer['error']}; {self._said_last()}")
        return answer

    def ask(self, seconds: float, do: str, **arguments: Any) -> dict[str, Any]:
        """Its answer to a command within `seconds`. PeerFailed."""
        try:
            print(json.dumps({"do": do, **arguments}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            pass  # listen() says why.
        answer = self.listen(seconds)
        self.losses += answer.get("losses", [])
        return answer

    def take_turn(self, round_: int, seconds: float, steps: int) -> None:
        """Trains this many steps within `seconds`."""
        self.turns[round_] = self.ask(seconds, "run", steps=steps)["seconds"] / steps

    def has_answered(self) -> bool:
        """Whether listen() would return or raise at once."""
        if self._process is None:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return bool(selector.select(0))

    def servers_peak(self) -> int:
        """The most bytes of memory that its servers have had, together."""
        children = self._servers.children if self._servers is not None else []
        return sum(high_water(child.pid) for child in children)

    def leave(self) -> None:
        """Tells the process to end; does not wait for it."""
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def close(self) -> None:
        """Ends the process, by force where it does not end by itself."""
        self.leave()
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        self._ends.close()

    def _said_last(self) -> str:
        text = (self._folder / "log").read_text(errors="replace").splitlines()
        lines = " | ".join(line.strip() for line in text[-LOG_TAIL:] if line)
        return "its log ends: " + lines[-SAID_MAX:]


def high_water(pid: int) -> int:
    """The most bytes of memory that a process has had, 0 where it is gone."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in ("VmHWM", "VmRSS"):
                found[key] = int(value.split()[0]) * 1024
    return found.get("VmHWM") or found.get("VmRSS", 0)


@contextlib.contextmanager
def started(peers: Sequence[Peer], rig: Rig) -> Iterator[list[Contestant]]:
    """Contestants whose processes begin side by side; all have ended after the block."""
    contestants: list[Contestant] = []
    try:
        for peer in peers:
            one = Contestant(peer, rig)
            one.start()
            contestants.append(one)
        yield contestants
    finally:
        for one in contestants:
            one.leave()
        for one in contestants:
            one.close()


def in_turn(contestants: Sequence[Contestant], round_: int) -> list[Contestant]:
    """All of them, beginning with another one in each round."""
    first = round_ % max(1, len(contestants))
    return [*contestants[first:], *contestants[:first]]


def spread(values: Iterable[float]) -> dict[str, float]:
    values = list(values)
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def ratios(one: Contestant, base: Contestant) -> list[float]:
    """By round that both took part in: how many times the speed of `base` it has."""
    return [base.turns[r] / one.turns[r] for r in sorted(one.turns) if r in base.turns]


def judge_losses(name: str, losses: Sequence[float], base: Sequence[float]) -> list[str]:
    """The faults of a contestant's losses, compared with those of `base`; [] for none."""
    wrong = []
    common = min(len(losses), len(base))
    if common < 4:
        return [f"{name}: only {common} losses to compare"]
    first, last = statistics.mean(losses[:2]), statistics.mean(losses[-2:])
    if not last < first:
        wrong.append(f"{name}: the loss does not fall: {first:.4f} to {last:.4f}")
    far = farthest(losses, base)
    if not far <= LOSS_TOLERANCE:
        wrong.append(
            f"{name}: a loss is {100 * far:.2f} % from torch's, more than "
            f"{100 * LOSS_TOLERANCE:.0f} %"
        )
    return wrong


def farthest(losses: Sequence[float], base: Sequence[float]) -> float:
    """The largest relative difference of the steps that both have taken; NaN counts as the most."""
    found = [abs(a - b) / abs(b) for a, b in zip(losses, base)]
    return float("nan") if any(f != f for f in found) else max(found, default=0.0)
