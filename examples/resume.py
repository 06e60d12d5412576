"""A training script that may be killed at any instant and continues with the same bits.

    ballast-run --servers 2 --nproc 2 --max-restarts 5 examples/resume.py

Kill any of its processes meanwhile (kill -9): the last line stays the same.
"""

import sys
import zlib

import torch

import ballast.torch as bt

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
inputs = torch.randn(4096, 64)
targets = inputs.square().mean(1, keepdim=True)

opt = bt.AdamW(model.named_parameters(), lr=1e-3, durability="process", resume="auto")
sampler = torch.Generator().manual_seed(opt.rank)  # every trainer draws its own batches
opt.attach()  # in an existing job: its weights, opt.round and opt.user_state
if opt.user_state:
    bt.set_random_state(opt.user_state["sampler"], sampler)

for _ in range(opt.round, steps):
    batch = torch.randint(len(inputs), (32,), generator=sampler)
    loss = torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    loss.backward()
    opt.user_state = {"sampler": bt.random_state(sampler)}  # committed with the round
    opt.step()
    opt.zero_grad()

weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
print(f"after {opt.round} rounds the weights have crc {zlib.crc32(weights.numpy()):08x}")
