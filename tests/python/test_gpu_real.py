"""Parameters on a real GPU: only `pytest -m gpu` on a host that has one. Written, not run."""

import copy

import ballast.torch as bt
import pytest
import torch
from torch import nn

from real_training import fresh_job

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this host")
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
