"""A loop with Accelerate over state in Ballast servers: another optimizer, and nothing else.

    ballast-run --servers 2 --nproc 2 examples/accelerate_loop.py [STEPS]

Needs accelerate. With several trainers prepare() wraps the model in DDP, which averages gradients;
with gradients="auto" the optimizer finds that out, and one of them pushes for all.
"""

import sys

import accelerate
import torch

import ballast.torch as bt

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50
accelerator = accelerate.Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
inputs = torch.randn(1024, 16)
data = torch.utils.data.TensorDataset(inputs, inputs.square().mean(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
# The service clips.
opt = bt.AdamW(model.named_parameters(), lr=1e-2, max_grad_norm=1.0, gradients="auto")

model, opt, loader = accelerator.prepare(model, opt, loader)
done, loss = 0, None
while done < steps:
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
        done += 1
        if done == steps:
            break
if accelerator.is_main_process:
    print(f"after {opt.optimizer.round} steps the loss is {loss.item():.4f}")
accelerator.end_training()
