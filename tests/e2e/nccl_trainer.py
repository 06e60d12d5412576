"""A trainer process with collective="nccl" over the fake NCCL; run by test_nccl.py.

usage: nccl_trainer.py bits ENDPOINTS JOB RANK WORLD FOLDER
  In each dtype a job with "nccl" next to one with a gloo group, with the same gradients. Prints, as
  JSON and per dtype, in how many bits the two models differ.
usage: nccl_trainer.py train ENDPOINTS JOB RANK WORLD FOLDER ROUNDS
  Trains up to round ROUNDS; takes a step that ends with TrainerLost again. Prints, as JSON, the
  rounds, a checksum of the weights, and the texts of errors and warnings. FAKE_NCCL kills it.
  The file FOLDER/told-RANK says that it has the first of these texts.
"""

from __future__ import annotations

import json
import sys
import warnings
import zlib
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "examples/quickstart")]

import ballast  # noqa: E402
import ballast.torch as bt  # noqa: E402
import torch  # noqa: E402
from e2e.collective_trainer import (  # noqa: E402
    DTYPES, EXTENTS, HYPER, ROUNDS, backward, group_of, new_model, side_by_side,
)  # fmt: skip
from e2e.oracle import differing_bits  # noqa: E402


def bits(endpoints: str, job: str, rank: str, world: str, folder: str) -> None:
    group = group_of(folder, job, int(rank), int(world), 60)
    said = {}
    for name, dtype in DTYPES.items():
        jobs = {f"{job}-{name}": "nccl", f"{job}-{name}-g": group}
        (ours, opt), (theirs, other) = side_by_side(endpoints, rank, world, dtype, jobs)
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
            if texts or warned:
                (Path(folder) / f"told-{rank}").touch()
    digest = 0
    for p in model.parameters():
        digest = zlib.crc32(p.detach().numpy().tobytes(), digest)
    warned_of = [str(w.message) for w in warned]
    print(json.dumps({"round": opt.round, "digest": digest, "lost": texts, "warned": warned_of}))
    opt.close()


if __name__ == "__main__":
    {"bits": bits, "train": train}[sys.argv[1]](*sys.argv[2:])
