"""An fp16 model whose loss scale and learning rate the service moves; four micro-batches a round.

    ballast-run --servers 2 --nproc 2 examples/fp16.py

The first rounds overflow until the scale fits; each line shows one round. Like examples/resume.py
it may be killed and started again: scale and schedule continue with the job.
"""

import sys

import torch

import ballast.torch as bt
from ballast.schedules import WarmupDecayLR

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).half()

opt = bt.AdamW(
    model.named_parameters(),
    loss_scale=bt.DynamicLossScale(initial_scale_power=24, loss_scale_window=50),
    lr_schedule=WarmupDecayLR(total_num_steps=steps, warmup_max_lr=3e-3, warmup_num_steps=20),
    accumulation_steps=4,
    durability="process",
    resume="auto",
)
opt.attach()
while opt.round < steps:
    for micro in range(opt.accumulation_steps):
        draw = torch.Generator().manual_seed(1000 * opt.round + 10 * micro + opt.rank)
        inputs = torch.randn(32, 16, generator=draw)
        outputs = model(inputs.half()).float()
        loss = torch.nn.functional.mse_loss(outputs, inputs.square().mean(1, keepdim=True))
        opt.scale(loss / opt.accumulation_steps).backward()
        opt.step()
        opt.zero_grad()
    said = "skipped" if opt.step_was_skipped else f"loss {loss.item():.4f}"
    (lr,) = opt.get_last_lr()
    print(f"round {opt.round}: {said}, lr {lr:.3g}, next scale {opt.loss_scale:g}")
print(f"{opt.opt_step} of {opt.round} rounds applied, {opt.skipped_steps} skipped")
