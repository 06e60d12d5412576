"""Parameters on a real GPU: only `pytest -m gpu` on a host that has one. Written, not run."""

import copy
import json
import pathlib
import subprocess
import sys

import ballast.torch as bt
import pytest
import torch
from ballast.errors import Unsupported
from torch import nn

from real_training import fresh_job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this host"),
]
RANKS = pathlib.Path(__file__).with_name("gpu_ranks.py")
RUN_S = 300


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_have_the_bits_of_the_same_gradients_on_the_cpu(shared_servers, dtype):
    torch.manual_seed(3)
    here = nn.Sequential(nn.Linear(70, 333), nn.Tanh(), nn.Linear(333, 5)).to(dtype)
    there = copy.deepcopy(here).cuda()
    options = {"endpoints": shared_servers(2), "extent_elements": 4096, "tile_elements": 64}
    ours = bt.AdamW(there.parameters(), job=fresh_job("gpu"), **options)
    theirs = bt.AdamW(here.parameters(), job=fresh_job("cpu"), **options)
    for _ in range(4):
        for p, q in zip(here.parameters(), there.parameters(), strict=True):
            p.grad = torch.randn(p.shape).to(dtype)
            q.grad = p.grad.cuda()
        ours.step()
        theirs.step()
        for p, q in zip(here.parameters(), there.parameters(), strict=True):
            assert torch.equal(p, q.cpu())


def test_nccl_and_a_process_group_over_all_gpus_agree_with_the_servers(start_servers, tmp_path):
    """One rank a GPU. Two ranks make one addition, so the servers' bits; more are near them."""
    world = torch.cuda.device_count()
    endpoints, job = ",".join(start_servers(2)), fresh_job("ranks")
    ranks = [
        subprocess.Popen(
            [sys.executable, RANKS, endpoints, job, str(rank), str(world), tmp_path],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(world)
    ]  # fmt: skip
    said = [rank.communicate(timeout=RUN_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, [error for _, error in said]
    of = [json.loads(out) for out, _ in said]
    for way in ("nccl", "group", "servers"):
        assert len({rank[way] for rank in of}) == 1, f"{way}: the ranks have other weights"
    assert all(rank["near"] for rank in of)
    if world <= 2:
        assert of[0]["nccl"] == of[0]["group"] == of[0]["servers"]


def test_a_mixed_job_and_a_capture(shared_servers):
    """Parameters on both devices have the bits of the CPU alone; a capture is refused by name."""
    torch.manual_seed(3)
    here = nn.Sequential(nn.Linear(70, 333), nn.Tanh(), nn.Linear(333, 5))
    there = copy.deepcopy(here)
    there[0].cuda()
    options = {"endpoints": shared_servers(2), "extent_elements": 4096, "tile_elements": 64}
    ours = bt.AdamW(there.parameters(), job=fresh_job("mixed"), **options)
    theirs = bt.AdamW(here.parameters(), job=fresh_job("cpu"), **options)
    for _ in range(3):
        for p, q in zip(here.parameters(), there.parameters(), strict=True):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.to(q.device)
        ours.step()
        theirs.step()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        with pytest.raises(Unsupported, match="captures a CUDA graph"):
            ours.step()
    for p, q in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.equal(p, q.cpu())
