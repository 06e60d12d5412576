"""A trainer process of a durable job, stopped and continued; see test_hung_trainer.py.

usage: hung_trainer.py ENDPOINTS JOB WORLD SLOT. Prints "ready" after the first round, takes rounds.
"""

from __future__ import annotations

import sys

import torch

import ballast.torch as bt


def main() -> None:
    endpoints, job, world, slot = sys.argv[1:]
    p = torch.nn.Parameter(torch.ones(1000))
    p.grad = torch.ones_like(p)
    seat = {"endpoints": endpoints, "job": job, "world_size": int(world), "rank": int(slot)}
    opt = bt.AdamW([("w", p)], **seat, durability="process")
    opt.step()
    print("ready", flush=True)
    while True:
        opt.step()


if __name__ == "__main__":
    main()
