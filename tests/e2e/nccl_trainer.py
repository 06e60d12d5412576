"""A trainer process with collective="nccl" over the fake NCCL; run by test_nccl.py.

usage: nccl_trainer.py bits ENDPOINTS JOB RANK WORLD FOLDER
  In each dtype a job with "nccl" beside one with a gloo group, with the same gradients. Prints, as
  JSON and per dtype, in how many bits the two models differ.
usage: nccl_trainer.py train ENDPOINTS JOB RANK WORLD FOLDER ROUNDS
  Trains up to round ROUNDS; takes a step that ends with TrainerLost again. Prints, as JSON, the
  rounds, a checksum of the weights, and the texts of errors and warnings. FAKE_NCCL kills it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import types
import warnings
import zlib
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "examples/quickstart")]

import ballast  # noqa: E402
import ballast.torch as bt  # noqa: E402
import torch  # noqa: E402
from ballast.errors import BallastError, TrainerLost  # noqa: E402
from ballast.torch import nccl  # noqa: E402
from e2e.collective_trainer import (  # noqa: E402
    DTYPES, EXTENTS, HYPER, ROUNDS, backward, group_of, new_model,
)  # fmt: skip
from e2e.oracle import differing_bits  # noqa: E402


class FileMeeting:
    """ballast.rendezvous.Rendezvous over files, where this build has none."""

    folder = Path()

    def __init__(self, session: object, generation: int, timeout_s: float) -> None:
        self.epoch, self.generation = session.epoch, generation
        self._session, self._timeout_s = session, timeout_s
        self._rank, self._world = session.config.rank, session.config.world_size
        (self.folder / f"process-{self._rank}").write_text(str(os.getpid()))

    def exchange(self, tag: str, id: bytes = b"") -> bytes:
        name = self._name("id")
        if id:
            name.with_suffix(f".{os.getpid()}").write_bytes(id)
            name.with_suffix(f".{os.getpid()}").rename(name)
        self._wait(name.exists)
        return name.read_bytes()

    def ready(self, tag: str, id: bytes) -> None:
        self._name(f"ready-{self._rank}").write_text("")
        names = [self._name(f"ready-{rank}") for rank in range(self._world)]
        self._wait(lambda: all(name.exists() for name in names))

    def give_up(self, tag: str, why: str) -> None:
        self._name("ended").write_text(why)

    def roll_call(self) -> types.SimpleNamespace:
        others = [r for r in range(self._world) if r != self._rank]
        ranks = [types.SimpleNamespace(rank=r, ago_s=self._ago(r), round=0) for r in others]
        ended = self._name("ended").exists()
        return types.SimpleNamespace(
            ranks=ranks, generation=self.generation, ended="given up" if ended else ""
        )

    def doing(self, phase: int, bucket: int = 0, round: int = 0) -> None:
        pass

    def _name(self, what: str) -> Path:
        return self.folder / f"{self._session.config.job}-{self.epoch}-{self.generation}-{what}"

    def _ago(self, rank: int) -> float | None:
        try:
            process = int((self.folder / f"process-{rank}").read_text())
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            return None if state in "ZX" else 0.0
        except (OSError, ValueError):
            return None

    def _wait(self, condition) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not condition():
            self._session.check_open()
            if self._session.epoch != self.epoch:
                raise BallastError("the epoch is over", code="ABORTED", reason="STALE_EPOCH")
            if self._name("ended").exists():
                raise BallastError("given up", code="ABORTED", reason="RENDEZVOUS_ENDED")
            if time.monotonic() >= deadline:
                raise TrainerLost("a rank did not come to the meeting")
            time.sleep(0.01)


def meet_in(folder: str) -> None:
    if importlib.util.find_spec("ballast.rendezvous") is None:
        FileMeeting.folder = Path(folder)
        nccl.meeting = FileMeeting


def bits(endpoints: str, job: str, rank: str, world: str, folder: str) -> None:
    meet_in(folder)
    group = group_of(folder, job, int(rank), int(world), 60)
    said = {}
    for name, dtype in DTYPES.items():
        seat = {
            "endpoints": endpoints, "rank": int(rank), "world_size": int(world),
            "durability": "none", "loss_scale": 4.0, **HYPER, **EXTENTS,
        }  # fmt: skip
        ours, theirs = new_model(dtype), new_model(dtype)
        opt = bt.AdamW(ours.named_parameters(), job=f"{job}-{name}", collective="nccl", **seat)
        other = bt.AdamW(theirs.named_parameters(), job=f"{job}-{name}-g", collective=group, **seat)
        opt.attach(), other.attach()
        differing = 0
        for round in range(ROUNDS):
            backward(ours, round, int(rank)), backward(theirs, round, int(rank))
            opt.step(), other.step()
            pairs = zip(ours.parameters(), theirs.parameters())
            differing += sum(differing_bits(p, q) for p, q in pairs)
        said[name] = differing
        opt.close(), other.close()
    print(json.dumps(said))
    torch.distributed.destroy_process_group()


def train(endpoints: str, job: str, rank: str, world: str, folder: str, rounds: str) -> None:
    meet_in(folder)
    model = new_model(torch.float32)
    opt = bt.AdamW(
        model.named_parameters(), job=job, endpoints=endpoints, rank=int(rank),
        world_size=int(world), durability="process", resume="auto", collective="nccl",
        **HYPER, **EXTENTS,
    )  # fmt: skip
    opt.attach()
    texts = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        while opt.round < int(rounds):
            backward(model, opt.round, int(rank))
            try:
                opt.step()
            except ballast.TrainerLost as error:
                texts.append(str(error))
                print(error, file=sys.stderr, flush=True)
                if len(texts) > 20:
                    raise
    digest = 0
    for p in model.parameters():
        digest = zlib.crc32(p.detach().numpy().tobytes(), digest)
    warned_of = [str(w.message) for w in warned]
    print(json.dumps({"round": opt.round, "digest": digest, "lost": texts, "warned": warned_of}))
    opt.close()


if __name__ == "__main__":
    {"bits": bits, "train": train}[sys.argv[1]](*sys.argv[2:])
