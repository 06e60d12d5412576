"""A small training run without an end, for dashboards: a few rounds a second, little CPU.

Comes from: up.sh, under ballast-run. Goes to: the state servers.
"""

import time

import torch

import ballast.torch as bt

PAUSE_S = 0.2

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
inputs = torch.randn(512, 64)
targets = inputs.square().mean(1, keepdim=True)
# Small extents, so that both servers have a share.
opt = bt.AdamW(model.named_parameters(), lr=1e-3, durability="process", resume="auto",
               tile_elements=1024, extent_elements=4096)
opt.attach()
while True:
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    opt.step()
    opt.zero_grad()
    time.sleep(PAUSE_S)
