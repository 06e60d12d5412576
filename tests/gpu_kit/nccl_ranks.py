"""A rank of a job in a process of its own, for nccl.py; and how it is started and read.

usage: python -m gpu_kit.nccl_ranks [--cpu] WHAT ...
  alone: makes a communicator of one rank, uses it, prints "ready", and waits to be killed.
  refused ENDPOINTS JOB RANK: one of two ranks on GPU 0; takes a step twice. Prints the texts of
    TrainerLost and how long each step took.
  continued ENDPOINTS JOB RANK GROUP: the same job with parameters on the CPU and a gloo group.
  ways ENDPOINTS JOB RANK WORLD GROUP: trains one model three times on GPU RANK, summed by NCCL, by
    a process group and by the servers. Prints a checksum of each, and whether NCCL's is near.
  train ENDPOINTS JOB RANK WORLD FOLDER ROUNDS: trains, takes a step that ends with TrainerLost
    again, and writes each finished round to FOLDER/round-RANK.
Its output is one line of JSON.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ballast
import ballast.torch as bt
import torch

from gpu_kit import nccl_links

EXTENTS = {"extent_elements": 4096, "tile_elements": 64}
TIMEOUT_S = 15.0
GO_ON = 2  # rounds of a continuing job


def started(cpu: bool, what: str, *arguments: object, plan: str = "") -> subprocess.Popen[str]:
    """A process of this module. plan: of the fake NCCL."""
    command = [sys.executable, "-m", "gpu_kit.nccl_ranks", *(["--cpu"] if cpu else []), what]
    environ = {"BALLAST_COLLECTIVE_TIMEOUT": str(TIMEOUT_S), "FAKE_NCCL": plan,
               "OMP_NUM_THREADS": "1"}  # fmt: skip
    return subprocess.Popen(
        [*command, *map(str, arguments)], text=True, stdout=subprocess.PIPE, stderr=sys.stderr,
        env={**os.environ, **environ},
    )  # fmt: skip


def results(ranks: Sequence[subprocess.Popen[str]], seconds: float) -> list[dict[str, Any]]:
    """Each process's output; ends them all when one fails or the time is over."""
    deadline = time.monotonic() + max(1.0, seconds - 3)
    try:
        while any(rank.poll() is None for rank in ranks):
            ended = [rank.returncode for rank in ranks if rank.returncode is not None]
            if any(ended) or time.monotonic() > deadline:
                break
            time.sleep(0.02)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    texts = [rank.communicate()[0] for rank in ranks]
    codes = [rank.returncode for rank in ranks]
    if any(codes):
        raise RuntimeError(f"the ranks ended with {codes}; their words are in the log")
    return [json.loads(text.splitlines()[-1]) for text in texts]


def new_model(ordinal: int, cpu: bool) -> torch.nn.Module:
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(70, 333), torch.nn.Tanh(), torch.nn.Linear(333, 5)
    )
    return model if cpu else model.to(f"cuda:{ordinal}")


def give_gradients(model: torch.nn.Module, round: int, rank: int) -> None:
    """Gradients that the round and the rank alone decide."""
    generator = torch.Generator().manual_seed(1000 * round + rank)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(p.device)


def digest(model: torch.nn.Module) -> int:
    """A checksum of all weights."""
    of = 0
    for p in model.parameters():
        of = zlib.crc32(p.detach().cpu().numpy().tobytes(), of)
    return of


def optimizer(
    model: torch.nn.Module, seat: tuple[str, str, int, int], collective: object
) -> bt.AdamW:
    """Attached. seat: endpoints, job, rank and world."""
    endpoints, job, rank, world = seat
    opt = bt.AdamW(model.parameters(), lr=1e-2, endpoints=endpoints, job=job, rank=rank,
                   world_size=world, durability="process", resume="auto", collective=collective,
                   **EXTENTS)  # fmt: skip
    opt.attach()
    return opt


def take_step(
    opt: bt.AdamW, model: torch.nn.Module, rank: int, texts: list[str], most: int
) -> None:
    """A step with the gradients of its round. The text of a TrainerLost goes to `texts`; the one
    that makes them more than `most` is raised."""
    give_gradients(model, opt.round, rank)
    try:
        opt.step()
    except ballast.TrainerLost as lost:
        texts.append(str(lost))
        if len(texts) > most:
            raise


def group_of(path: str, backend: str, rank: int, world: int) -> object:
    torch.distributed.init_process_group(
        backend, init_method=f"file://{path}", rank=rank, world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    return torch.distributed.group.WORLD


def alone(cpu: bool) -> None:
    links = nccl_links.Links(cpu)
    wrong = links.used(links.make())
    print(wrong or "ready", flush=True)
    time.sleep(120)


def refused(cpu: bool, endpoints: str, job: str, rank: str) -> None:
    model = new_model(0, cpu)
    opt = optimizer(model, (endpoints, job, int(rank), 2), "nccl")
    texts, seconds = [], []
    for _ in range(2):
        began = time.monotonic()
        take_step(opt, model, int(rank), texts, 2)
        seconds.append(time.monotonic() - began)
    print(json.dumps({"texts": texts, "seconds": seconds, "round": opt.round}), flush=True)
    os._exit(0)  # A trainer that closes would end the job of the other one.


def continued(cpu: bool, endpoints: str, job: str, rank: str, group: str) -> None:
    model = new_model(0, True)
    opt = optimizer(
        model, (endpoints, job, int(rank), 2), group_of(group, "gloo", int(rank), 2)
    )
    while opt.round < GO_ON:
        give_gradients(model, opt.round, int(rank))
        opt.step()
    print(json.dumps({"round": opt.round, "digest": digest(model)}), flush=True)
    opt.close()


def ways(cpu: bool, endpoints: str, job: str, rank: str, world: str, group: str) -> None:
    backend = "gloo" if cpu else "cpu:gloo,cuda:nccl"
    collectives = {"nccl": "nccl", "group": group_of(group, backend, int(rank), int(world)),
                   "servers": None}  # fmt: skip
    said: dict[str, Any] = {}
    weights = {}
    for way, collective in collectives.items():
        model = new_model(int(rank), cpu)
        opt = optimizer(model, (endpoints, f"{job}-{way}", int(rank), int(world)), collective)
        for round in range(4):
            give_gradients(model, round, int(rank))
            opt.step()
        opt.close()
        said[way], weights[way] = digest(model), [p.detach().cpu() for p in model.parameters()]
    said["near"] = all(
        torch.allclose(p, q, rtol=1e-5, atol=1e-6)
        for p, q in zip(weights["nccl"], weights["servers"])
    )
    print(json.dumps(said), flush=True)
    torch.distributed.destroy_process_group()


def train(
    cpu: bool, endpoints: str, job: str, rank: str, world: str, folder: str, rounds: str
) -> None:
    model = new_model(int(rank), cpu)
    opt = optimizer(model, (endpoints, job, int(rank), int(world)), "nccl")
    texts = []
    while opt.round < int(rounds):
        take_step(opt, model, int(rank), texts, 20)
        Path(folder, f"round-{rank}").write_text(str(opt.round))
    print(json.dumps({"round": opt.round, "digest": digest(model), "texts": texts}), flush=True)
    opt.close()


if __name__ == "__main__":
    on_host = sys.argv[1] == "--cpu"
    what, *given = sys.argv[1 + on_host :]
    if on_host and what != "continued":
        problem = nccl_links.rehearse()
        if problem:
            sys.exit(problem)
    if not on_host and what != "continued":
        torch.cuda.set_device(int(given[2]) if what in ("ways", "train") else 0)
    {"alone": alone, "refused": refused, "continued": continued, "ways": ways, "train": train}[
        what
    ](on_host, *given)
