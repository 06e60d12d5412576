"""A trainer with a small model, for tests that need a job.

Comes from: the tests. Goes to: ballast.torch.
"""

from __future__ import annotations

import torch

import ballast.torch as bt

# Small extents, so that several servers have a share of a small model.
SMALL = {"tile_elements": 64, "extent_elements": 128}


def train(endpoint: str, job: str, rounds: int, resume: str = "never",
          durability: str = "power") -> int:
    """A trainer, alone in its world, from its start to its end; the job's finished rounds."""
    weights = torch.nn.Parameter(torch.ones(512))
    optimizer = bt.AdamW([("weights", weights)], lr=0.1, endpoints=endpoint, job=job, world_size=1,
                         rank=0, resume=resume, durability=durability, **SMALL)
    optimizer.attach()
    for _ in range(rounds):
        weights.grad = torch.ones(512)
        optimizer.step()
    finished = optimizer.round
    optimizer.close()
    return finished
