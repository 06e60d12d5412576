"""A DeepSpeed script, with only its import changed: over real servers, and in DeepSpeed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from real_training import CLIENT
from serving import built_ballastd

# Element counts are multiples of 8: there torch's fused AdamW is an exact oracle.
SCRIPT = """
import os, sys
import torch
IMPORT
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
engine, optimizer, _, scheduler = deepspeed.initialize(
    model=module, optimizer=optimizer,
    lr_scheduler=lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.5),
    config={"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.0, "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False})
rank = int(os.environ.get("RANK", "0"))
for i in range(10):
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(100 * rank + i))
    loss = engine(x).square().mean()
    engine.backward(loss) if i % 2 else loss.backward()
    engine.step()
engine.save_16bit_model(sys.argv[1])
if rank == 0:
    print(engine.global_steps, engine.micro_steps, engine.global_samples, engine.skipped_steps,
          engine.get_lr(), engine.train_batch_size())
"""
OURS = SCRIPT.replace("IMPORT", "import ballast.deepspeed as deepspeed")
THEIRS = SCRIPT.replace("IMPORT", "import deepspeed")


def oracle(world):
    """The same loop in plain torch, with gradients averaged in the order of ranks."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    for window in range(5):
        of_ranks = []
        for rank in range(world):
            module.zero_grad()
            for i in (2 * window, 2 * window + 1):
                x = torch.randn(4, 16, generator=torch.Generator().manual_seed(100 * rank + i))
                (module(x).square().mean() / 2).backward()
            of_ranks.append([p.grad.clone() for p in module.parameters()])
        for p, *grads in zip(module.parameters(), *of_ranks):
            p.grad = torch.stack(grads).sum(0) * (1.0 / world)
        optimizer.step()
        scheduler.step()
    return module.state_dict()


def same(folder, state):
    got = torch.load(folder / "pytorch_model.bin", weights_only=True)
    assert got.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(got[name], value), name


@pytest.mark.parametrize("world", [1, 2])
def test_the_script_over_real_servers_has_the_bits_of_torch(tmp_path, world):
    environ = {**os.environ, "PYTHONPATH": str(CLIENT), "BALLAST_BALLASTD": str(built_ballastd())}
    script = tmp_path / "train.py"
    script.write_text(OURS)
    done = subprocess.run(
        [sys.executable, "-m", "ballast.run", "--servers", "2", "--nproc", str(world), script,
         tmp_path / "out"],
        env=environ, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    same(tmp_path / "out", oracle(world))
    samples = 40 * world
    assert f"5 10 {samples} 0 [0.0025] {8 * world}" in done.stdout


@pytest.mark.slow
@pytest.mark.deepspeed
def test_the_script_in_deepspeed_has_the_same_bits_and_counters(tmp_path):
    environ = {**os.environ, "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "RANK": "0",
               "MASTER_PORT": "29537", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
               "OMP_NUM_THREADS": "1"}
    script = tmp_path / "train.py"
    script.write_text(THEIRS)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "out"],
        env=environ, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    same(tmp_path / "out", oracle(1))
    assert "5 10 40 0 [0.0025] 8" in done.stdout
