"""One rank of a job per GPU; run by test_gpu_real.py. Written, not run on a GPU.

usage: gpu_ranks.py ENDPOINTS JOB RANK WORLD FOLDER
  Trains one model three times on fixed gradients: summed by NCCL, by a process group of torch, and
  by the servers. Prints, as JSON, a checksum of the weights of each, and whether NCCL's are near
  the servers'.
"""

from __future__ import annotations

import datetime
import json
import sys
import zlib

import ballast.torch as bt
import torch

ROUNDS = 4


def new_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(70, 333), torch.nn.Tanh(), torch.nn.Linear(333, 5))


def train(model: torch.nn.Module, seed: int, **options: object) -> list[torch.Tensor]:
    opt = bt.AdamW(model.parameters(), lr=1e-2, durability="process", resume="auto", **options)
    opt.attach()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(ROUNDS):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator).to(p.device)
        opt.step()
    opt.close()
    return [p.detach().cpu() for p in model.parameters()]


def main(endpoints: str, job: str, rank: int, world: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=f"file://{folder}/group", rank=rank, world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    ways = {"nccl": "nccl", "group": torch.distributed.group.WORLD, "servers": None}
    seat = {"endpoints": endpoints, "rank": rank, "world_size": world}
    small = {"extent_elements": 4096, "tile_elements": 64}
    said, weights = {}, {}
    for way, collective in ways.items():
        model = new_model().cuda()
        weights[way] = train(
            model, rank, job=f"{job}-{way}", collective=collective, **seat, **small
        )
        said[way] = 0
        for p in weights[way]:
            said[way] = zlib.crc32(p.numpy().tobytes(), said[way])
    said["near"] = all(
        torch.allclose(p, q, rtol=1e-5, atol=1e-6)
        for p, q in zip(weights["nccl"], weights["servers"], strict=True)
    )
    print(json.dumps(said))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
