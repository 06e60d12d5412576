"""A trainer process that something happens to; see test_faults.py.

usage: victim_trainer.py ENDPOINTS JOB WORLD SLOT MODE. Takes 3 rounds, prints "ready", and then
  hold   takes no further round, but lives
  push   continues with rounds
  raise  ends by an exception
  exit   ends as after a success
"""

from __future__ import annotations

import signal
import sys

import torch

import ballast.torch as bt

ROUNDS = 3


def main() -> None:
    endpoints, job, world, slot, mode = sys.argv[1:]
    p = torch.nn.Parameter(torch.ones(200_000))
    p.grad = torch.ones_like(p)
    seat = {"endpoints": endpoints, "job": job, "world_size": int(world), "rank": int(slot)}
    opt = bt.AdamW([("w", p)], **seat, durability="none")
    print("attaching", flush=True)
    for _ in range(ROUNDS):
        opt.step()
    print("ready", flush=True)
    if mode == "raise":
        raise ValueError("a mistake in the training script")
    while mode == "push":
        opt.step()
    if mode == "hold":
        signal.pause()


if __name__ == "__main__":
    main()
