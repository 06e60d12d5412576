"""A trainer process whose gradients are equal on all ranks; run by test_reduced.py.

usage: reduced_trainer.py ddp ENDPOINTS JOB RANK WORLD FOLDER GRADIENTS
  A model in DDP over gloo, next to the same model in DDP with torch's optimizer. Prints, as JSON,
  in how many bits the two differ after each round, and this rank's pushed bytes.
usage: reduced_trainer.py hold ENDPOINTS JOB RANK WORLD ROUNDS
  Takes the rounds of test_reduced.EqualWorld, prints "ready", and takes no further one.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import ballast.torch as bt  # noqa: E402
from e2e.lockstep import Noise, initial_weights  # noqa: E402
from e2e.oracle import differing_bits  # noqa: E402

ROUNDS = 12
HYPER = {"lr": 1e-2, "weight_decay": 0.1}
SHAPES = {"weight": (64, 40), "bias": (40,), "odd": (77, 3), "scalar": ()}
EXTENTS = {"tile_elements": 64, "extent_elements": 128}


def in_ddp() -> nn.parallel.DistributedDataParallel:
    torch.manual_seed(1)
    # torch's fused AdamW is exact for multiples of 8 elements.
    model = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 16))
    return nn.parallel.DistributedDataParallel(model)


def backward(model: nn.Module, round: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(1000 * round + rank)
    model.zero_grad()
    model(torch.randn(4, 40, generator=generator)).square().mean().backward()


def ddp(endpoints: str, job: str, rank: str, world: str, folder: str, gradients: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/{job}", rank=int(rank), world_size=int(world)
    )
    ours, theirs = in_ddp(), in_ddp()
    opt = bt.AdamW(
        ours.module.named_parameters(), **HYPER, endpoints=endpoints, job=job, rank=int(rank),
        world_size=int(world), gradients=gradients, durability="process", **EXTENTS,
    )  # fmt: skip
    reference = torch.optim.AdamW(theirs.parameters(), **HYPER, fused=True)
    bits = 0
    for round in range(ROUNDS):
        for model in (ours, theirs):
            backward(model, round, int(rank))
        opt.step()
        reference.step()
        bits += sum(
            differing_bits(p, q) for p, q in zip(ours.parameters(), theirs.parameters())
        )
    print(json.dumps({"bits": bits, "up": opt.counters["payload_up_bytes"]}))
    opt.close()
    torch.distributed.destroy_process_group()


def hold(endpoints: str, job: str, rank: str, world: str, rounds: str) -> None:
    replica = {n: nn.Parameter(w) for n, w in initial_weights(SHAPES, torch.float32).items()}
    noise = Noise(SHAPES)
    opt = bt.AdamW(
        replica.items(), **HYPER, endpoints=endpoints, job=job, rank=int(rank),
        world_size=int(world), gradients="reduced", durability="process", variable_world=True,
        resume="auto", **EXTENTS,
    )  # fmt: skip
    opt.attach()
    for round in range(int(rounds)):
        for name, p in replica.items():
            p.grad = noise.of(round, 0, name)
        opt.step()
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    {"ddp": ddp, "hold": hold}[sys.argv[1]](*sys.argv[2:])
