"""fp16 with a dynamic scale and a schedule of a ds_config, over real servers."""

from __future__ import annotations

import ballast.deepspeed as deepspeed
import ballast.torch as bt
import pytest
import torch
from real_training import fresh_job

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
    "fp16": {"enabled": True, "initial_scale_power": 24, "hysteresis": 1, "loss_scale_window": 2},
    "scheduler": {
        "type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_num_steps": 3},
    },
}  # fmt: skip
MICRO_BATCHES = 24


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def loss_of(module, i):
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(i))
    return module(x.half()).float().square().mean()


def plain_loop(endpoints):
    """The same job by bt alone: what the optimizer says after each round, and the model."""
    module = net().half()
    opt = bt.AdamW(
        module.named_parameters(), lr=0.01, weight_decay=0.1, job=fresh_job("plain"),
        endpoints=endpoints,
        loss_scale=bt.DynamicLossScale(24, loss_scale_window=2, hysteresis=1),
        lr_schedule=bt.schedules.WarmupDecayLR(9, warmup_num_steps=3),
    )  # fmt: skip
    said = []
    for i in range(MICRO_BATCHES):
        opt.scale(loss_of(module, i) / 2).backward()
        if i % 2:
            opt.step()
            opt.zero_grad()
            said.append((opt.get_last_lr(), opt.loss_scale, opt.skipped_steps))
    opt.close()
    return module, said


@pytest.mark.e2e
def test_the_engine_follows_the_scale_and_the_schedule_of_the_service(shared_servers, monkeypatch):
    endpoints = shared_servers(2)
    monkeypatch.setenv("BALLAST_ENDPOINTS", ",".join(endpoints))
    monkeypatch.setenv("BALLAST_JOB", fresh_job("engine"))
    engine, optimizer, _, scheduler = deepspeed.initialize(model=net(), config=CONFIG)
    said = []
    for i in range(MICRO_BATCHES):
        engine.backward(loss_of(engine, i))
        engine.step()
        if i % 2:
            said.append((engine.get_lr(), engine.loss_scale(), engine.skipped_steps))
    module, expected = plain_loop(endpoints)
    assert said == expected
    for a, b in zip(engine.module.parameters(), module.parameters(), strict=True):
        assert torch.equal(a, b)
    rounds = MICRO_BATCHES // 2
    assert 0 < engine.skipped_steps < rounds and engine.global_steps == rounds
    assert scheduler.last_batch_iteration == optimizer.opt_step - 1
    engine.destroy()
