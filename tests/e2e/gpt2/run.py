"""The common part of the scripts in scripts/: their beginning, their log, and their death.

Comes from: the scripts. Goes to: files that the tests read. Knows no framework.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from e2e.gpt2 import net

STRIKE = "strike"  # a file in the folder of a case

_INTEGER = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


class Log:
    """A script's report after each round, and its weights at the end."""

    def __init__(self, case: net.Case) -> None:
        self._case = case
        self.rounds: list[dict[str, Any]] = []
        self.weights: dict[str, torch.Tensor] = {}
        self._losses: list[float] = []  # of the present round
        self._done = 0  # rounds of this process

    def loss(self, loss: Any) -> None:
        """Of a micro-batch."""
        self._losses.append(loss.item() if isinstance(loss, torch.Tensor) else loss)

    def round_ended(self, **values: Any) -> None:
        """What there is to say of a round. Then, where the case says so, the servers are killed,
        and this process is."""
        self.rounds.append({"loss": sum(self._losses) / len(self._losses), **values})
        self._losses = []
        self._done += 1
        if os.environ.get("RANK", "0") != "0":
            return
        if self._done in self._case.strikes:
            wanted = Path(self._case.folder) / STRIKE
            wanted.touch()
            while wanted.exists():  # until the test has done it
                time.sleep(0.005)
        if self._done == self._case.dies:
            os.kill(os.getpid(), signal.SIGKILL)

    def ended(self, module: torch.nn.Module) -> None:
        named = module.named_parameters()
        self.weights = {name: p.detach().clone() for name, p in named}

    def column(self, key: str) -> list[Any]:
        return [said[key] for said in self.rounds]

    def differing_bits(self, other: Log) -> int:
        """Elements of the weights at the end whose bits differ."""
        mine, theirs = self.weights, other.weights
        assert mine.keys() == theirs.keys() and mine
        return sum(
            int((a.view(_INTEGER[a.dtype]) != theirs[name].view(_INTEGER[a.dtype])).sum())
            for name, a in mine.items()
        )

    def write(self, folder: Path, rank: int) -> None:
        (folder / f"rounds-{rank}.json").write_text(json.dumps(self.rounds))
        torch.save(self.weights, folder / f"weights-{rank}.pt")

    @staticmethod
    def read(folder: Path, rank: int = 0) -> Log:
        log = Log(net.Case())
        log.rounds = json.loads((folder / f"rounds-{rank}.json").read_text())
        log.weights = torch.load(folder / f"weights-{rank}.pt", weights_only=True)
        return log


def from_round(
    rounds: int, case: net.Case, batches: Iterable[dict[str, torch.Tensor]]
) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """The micro-batches after this many rounds, each with its place in its epoch.

    batches: of one epoch; read once for each.
    """
    done = 0
    for _ in range(case.epochs):
        for place, batch in enumerate(batches):
            if done >= rounds:
                yield place, batch
            done += case.ends(place)
