"""A trainer process with collective= over gloo; run by test_collective.py.

usage: collective_trainer.py bits ENDPOINTS JOB RANK WORLD FOLDER
  In each dtype a job with the process group next to one without, with the same gradients. Prints,
  as JSON and per dtype, in how many bits the two models differ, and the bytes of both, up and down.
usage: collective_trainer.py train ENDPOINTS JOB RANK WORLD FOLDER ROUNDS WHERE
  Trains up to round ROUNDS. Prints, as JSON, the rounds, a checksum of the weights and the losses.
  WHERE "reduce:3", "push:3" or "gather:3": the process kills itself there in round 3; "stop:3": it
  stops in the reduce-scatter of round 3. "-": it does not. TrainerLost and its like end it with
  exit code 3 and the text on stderr.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
import zlib
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "examples/quickstart")]

import torch  # noqa: E402
from model import CONTEXT, ByteGPT  # noqa: E402

import ballast  # noqa: E402
import ballast.torch as bt  # noqa: E402
from e2e.oracle import differing_bits  # noqa: E402

ROUNDS = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
EXTENTS = {"tile_elements": 64, "extent_elements": 256}
HYPER = {"lr": 1e-2, "weight_decay": 0.1, "max_grad_norm": 1.0}


def group_of(folder: str, name: str, rank: int, world: int, timeout_s: float) -> object:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=world,
        timeout=datetime.timedelta(seconds=timeout_s),
    )  # fmt: skip
    return torch.distributed.group.WORLD


def new_model(dtype: torch.dtype) -> ByteGPT:
    torch.manual_seed(1)
    return ByteGPT(width=32, layers=2, heads=2).to(dtype)


def loss_of(model: ByteGPT, round: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * round + rank)
    text = torch.randint(0, 256, (2, CONTEXT), generator=generator)
    logits = model(text[:, :-1])
    logits = logits if logits.dtype is torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def backward(model: ByteGPT, round: int, rank: int) -> float:
    model.zero_grad()
    loss = loss_of(model, round, rank)
    loss.backward()
    if round % 2 and rank == 0:
        model.blocks[0].down.bias.grad = None  # the other ranks have one
    return loss.item()


def sum_in_16_bits(models: list[ByteGPT], rank: int) -> None:
    """The gradients of both ranks, added and rounded once, as those of rank 0; zeros on others."""
    for p in models[0].parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        both = p.grad.float()
        torch.distributed.all_reduce(both)
        p.grad = both.to(p.dtype) if rank == 0 else torch.zeros_like(p)


def side_by_side(
    endpoints: str, rank: str, world: str, dtype: torch.dtype, jobs: dict[str, object]
) -> list[tuple[ByteGPT, bt.AdamW]]:
    """Per job, by its name and with its collective: the same model, and its attached optimizer."""
    made = []
    for job, collective in jobs.items():
        model = new_model(dtype)
        opt = bt.AdamW(
            model.named_parameters(), job=job, collective=collective, endpoints=endpoints,
            rank=int(rank), world_size=int(world), durability="none", loss_scale=4.0, **HYPER,
            **EXTENTS,
        )  # fmt: skip
        opt.attach()
        made.append((model, opt))
    return made


def bits(endpoints: str, job: str, rank: str, world: str, folder: str) -> None:
    group = group_of(folder, job, int(rank), int(world), 60)
    said = {}
    for name, dtype in DTYPES.items():
        jobs = {f"{job}-{name}": group, f"{job}-{name}-servers": "none"}
        (ours, opt), (theirs, other) = side_by_side(endpoints, rank, world, dtype, jobs)
        before, differing = [opt.counters, other.counters], 0
        for round in range(ROUNDS):
            backward(ours, round, int(rank)), backward(theirs, round, int(rank))
            kept = [None if p.grad is None else p.grad.clone() for p in ours.parameters()]
            if dtype is not torch.float32:
                sum_in_16_bits([theirs], int(rank))
            opt.step(), other.step()
            for p, q, mine in zip(ours.parameters(), theirs.parameters(), kept):
                differing += differing_bits(p, q)
                assert (p.grad is None) == (mine is None)
                assert mine is None or torch.equal(p.grad, mine), "a rank's gradient has changed"
        moved = [
            {key: after[key] - first[key] for key in ("payload_up_bytes", "payload_down_bytes")}
            for after, first in zip((opt.counters, other.counters), before)
        ]
        norms = [o.last_report["grad_norm"] for o in (opt, other)]
        said[name] = {"bits": differing, "ours": moved[0], "theirs": moved[1], "norms": norms}
        opt.close(), other.close()
    print(json.dumps(said))
    torch.distributed.destroy_process_group()


def strike(opt: bt.AdamW, where: str) -> None:
    """Arms what WHERE says."""
    kind, _, at = where.partition(":")
    shares = opt._membership.shares
    session, collective = opt._membership.session, shares._collective
    if kind in ("reduce", "stop", "gather"):
        target, name = collective, "all_gather" if kind == "gather" else "reduce_scatter"
    else:
        target, name = session, "step"
    inner, applied = getattr(target, name), kind == "gather"

    def call(*arguments: object) -> object:
        bucket = arguments[-1] if target is collective else 1
        if session.round + (not applied) == int(at) and bucket == 1:
            os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
        return inner(*arguments)

    setattr(target, name, call)


def train(
    endpoints: str, job: str, rank: str, world: str, folder: str, rounds: str, where: str
) -> None:
    model = new_model(torch.float32)
    group = group_of(folder, "group", int(rank), int(world), 8)
    opt = bt.AdamW(
        model.named_parameters(), job=job, endpoints=endpoints, rank=int(rank),
        world_size=int(world), durability="process", resume="auto", collective=group,
        **HYPER, **EXTENTS,
    )  # fmt: skip
    opt.attach()
    if where != "-":
        strike(opt, where)
    losses = []
    try:
        while opt.round < int(rounds):
            losses.append(backward(model, opt.round, int(rank)))
            opt.step()
    except (ballast.TrainerLost, ballast.BallastError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(3)
    digest = 0
    for p in model.parameters():
        digest = zlib.crc32(p.detach().numpy().tobytes(), digest)
    print(json.dumps({"round": opt.round, "digest": digest, "losses": losses}))
    opt.close()


if __name__ == "__main__":
    {"bits": bits, "train": train}[sys.argv[1]](*sys.argv[2:])
