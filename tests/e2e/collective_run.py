"""One job of trainers that sum with a collective, from its first round to its last, under strikes.

Comes from: the storm of collective= and the tests of four ranks. Goes to: storm_trainer.py, through
a Zygote; the cluster's servers, which it starts again. Thread safety: used by one thread.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import torch

from e2e.cluster import HANG_S, Cluster, fresh_job
from e2e.lateness import Lateness, Starvation
from e2e.zygote import Zygote

LEASE_S = 10.0  # the servers' default
STALL_S = LEASE_S + 10.0
GROUP_S = 8.0
GROUP_LOST = 3  # of storm_trainer.py


class Run:
    """One job from its first round to its last, under strikes."""

    def __init__(
        self, cluster: Cluster, zygote: Zygote, folder: Path, world: int, collective: str,
        rounds: int, extent_elements: int = 1024,
    ) -> None:
        """collective: "nccl", "gloo" or "none"."""
        self._cluster, self._zygote, self._world = cluster, zygote, world
        self._collective, self._extent_elements = collective, extent_elements
        self._job, self._rounds = fresh_job("storm"), rounds
        self._folder = folder / self._job
        self._folder.mkdir()
        self._starts = 0
        # The longest time without a finished round, less the time in it that trainers, servers and
        # this process waited for a processor.
        self.stalled_s = 0.0

    def finish(self, strikes: list[dict[str, Any]], impatient: bool = True) -> int:
        """The checksum of all ranks' weights. impatient: the others of a process group are killed,
        as torchrun does; else they end by themselves."""
        ranks = self._start_all(strikes)
        try:
            with Lateness() as lateness:
                self._watch(ranks, strikes, lateness, impatient)
        finally:
            for pid in ranks.values():
                if self._zygote.code(pid) is None:
                    self._zygote.kill(pid)
        said = self.results()
        assert {result["round"] for result in said} == {self._rounds}
        (digest,) = {result["digest"] for result in said}
        return digest

    def results(self) -> list[dict[str, Any]]:
        """Each trainer's result at its end."""
        files = [self._folder / f"result-{rank}" for rank in range(self._world)]
        return [json.loads(file.read_text()) for file in files]

    def weights(self) -> torch.Tensor:
        """All weights after the last round, in float64."""
        content = bytearray((self._folder / "weights-0").read_bytes())
        return torch.frombuffer(content, dtype=torch.float64)

    def struck(self, strike: dict[str, Any]) -> bool:
        return (self._folder / f"struck-{strike['id']}").exists()

    def _watch(
        self, ranks: dict[int, int], strikes: list, lateness: Lateness, impatient: bool
    ) -> None:
        seen, since, starved = 0, time.monotonic(), Starvation()
        while any(self._zygote.code(pid) != 0 for pid in ranks.values()):
            self._zygote.wait(0.02)
            starved.look([*ranks.values(), *self._cluster.pids()])
            self._restart_servers()
            self._restart_ranks(ranks, strikes, impatient)
            now, finished = time.monotonic(), self._finished()
            lost = lateness.since(since) + starved.seconds
            self.stalled_s = max(self.stalled_s, now - since - lost)
            hangs = self.stalled_s >= STALL_S or now - since >= 2 * HANG_S
            assert not hangs, f"round {seen + 1} hangs, {lost:.0f} s were lost\n{self.logs()}"
            if finished > seen:
                seen, since = finished, now
                starved.begin()

    def _restart_servers(self) -> None:
        for server, alive in enumerate(self._cluster.running()):
            if not alive:
                self._cluster.restart(server)

    def _restart_ranks(self, ranks: dict[int, int], strikes: list, impatient: bool) -> None:
        codes = {rank: self._zygote.code(pid) for rank, pid in ranks.items()}
        grouped = self._collective == "gloo"
        bad = {-signal.SIGKILL, GROUP_LOST} if grouped else {-signal.SIGKILL}
        for rank, code in codes.items():
            assert code in {None, 0, *bad}, f"rank {rank} ended with {code}\n{self.logs()}"
        ended = [rank for rank, code in codes.items() if code in bad]
        if not grouped:
            ranks.update({rank: self._start(rank, strikes) for rank in ended})
        elif ended and all(code is not None for code in codes.values()):
            ranks.update(self._start_all(strikes))
        elif ended and impatient:
            for rank, code in codes.items():
                if code is None:
                    self._zygote.kill(ranks[rank])

    def _start_all(self, strikes: list) -> dict[int, int]:
        self._starts += 1
        return {rank: self._start(rank, strikes) for rank in range(self._world)}

    def _start(self, rank: int, strikes: list) -> int:
        own = [{k: v for k, v in strike.items() if k != "rank"}
               for strike in strikes if strike["rank"] == rank]  # fmt: skip
        meets = str(self._folder / f"group-{self._starts}")
        return self._zygote.start({
            "endpoints": self._cluster.endpoints, "job": self._job, "rank": rank,
            "world": self._world, "folder": str(self._folder), "rounds": self._rounds,
            "collective": meets if self._collective == "gloo" else self._collective,
            "group_s": GROUP_S, "extent_elements": self._extent_elements, "strikes": own,
            "log": str(self._folder / f"log-{rank}"),
        })  # fmt: skip

    def _finished(self) -> int:
        files = [self._folder / f"done-{rank}" for rank in range(self._world)]
        return min(int(file.read_text()) if file.exists() else 0 for file in files)

    def logs(self) -> str:
        """The end of each trainer's output."""
        texts = [f"--- {log.name}\n{log.read_text()[-3000:]}" for log in self._folder.glob("log-*")]
        return "\n".join(texts)
