"""A DeepSpeed script with one line changed, which saves and loads checkpoints.

    ballast-run --servers 2 --nproc 2 examples/deepspeed_engine.py DIRECTORY [STEPS]

Run it again with the same servers (BALLAST_ENDPOINTS) and more steps: it continues from
DIRECTORY/latest, with as many trainers as you like.
"""

import sys

import torch

import ballast.deepspeed as deepspeed  # was: import deepspeed

folder = sys.argv[1]
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
engine, _, _, _ = deepspeed.initialize(
    model=model,
    config={
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "gradient_clipping": 1.0,
    },
)
path, client_state = engine.load_checkpoint(folder)  # (None, None) the first time
sampler = torch.Generator().manual_seed(1000 * engine.global_steps + engine.global_rank)
loss = torch.tensor(0.0)
while engine.global_steps < steps:
    x = torch.randn(8, 16, generator=sampler)
    loss = torch.nn.functional.mse_loss(engine(x), x.square().mean(1, keepdim=True))
    engine.backward(loss)
    engine.step()
engine.save_checkpoint(folder, client_state={"loss": loss.item()})
if engine.global_rank == 0:
    began = f"{path}, with a loss of {client_state['loss']:.4f}" if path else "nothing"
    print(f"from {began}: after {engine.global_steps} steps the loss is {loss.item():.4f}")
