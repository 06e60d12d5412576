"""fp16 with a dynamic scale and a schedule of a ds_config, over real servers."""

from __future__ import annotations

import ballast.deepspeed as deepspeed
import ballast.torch as bt
import pytest
import torch
from ballast.ds_checkpoint import Group, NamedState, Progress, to_universal
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
    """The same job by bt alone: the optimizer's values after each round, and the model."""
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


def plain_rounds(engine, first, last):
    """Rounds of an fp32 engine; the rates of each."""
    rates = []
    for i in range(2 * first, 2 * last):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(i))
        engine.backward(engine(x).square().mean())
        engine.step()
        if i % 2:
            rates.append(engine.get_lr())
    return rates


@pytest.mark.e2e
def test_a_universal_checkpoint_continues_the_services_schedule(
    shared_servers, monkeypatch, tmp_path
):
    monkeypatch.setenv("BALLAST_ENDPOINTS", ",".join(shared_servers(2)))
    monkeypatch.setenv("BALLAST_JOB", fresh_job("first"))
    config = {**CONFIG, "fp16": {"enabled": False}, "checkpoint": {"load_universal": True}}
    first = deepspeed.initialize(model=net(), config=config)[0]
    plain_rounds(first, 0, 4)
    exported = first.optimizer.export_state()
    states = {
        exported["names"][i]: NamedState(
            {"fp32": s["master"], "exp_avg": s["exp_avg"], "exp_avg_sq": s["exp_avg_sq"]},
            int(s["step"]))
        for i, s in exported["state"].items()
    }  # fmt: skip
    to_universal(tmp_path, "t", states, [Group(list(states), {})], progress=Progress(4, 32, 0))
    for path in (tmp_path / "t").glob("*_model_states.pt"):
        values = torch.load(path, weights_only=True)
        torch.save({**values, "lr_scheduler": first.lr_scheduler.state_dict()}, path)

    monkeypatch.setenv("BALLAST_JOB", fresh_job("second"))
    second = deepspeed.initialize(model=net(), config=config)[0]
    second.load_checkpoint(tmp_path)
    assert second.lr_scheduler.last_batch_iteration == 3
    rates = [plain_rounds(engine, 4, 8) for engine in (first, second)]
    assert rates[0] == rates[1] and len({rate for (rate,) in rates[0]}) == 4
    for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(a, b)
    positions = [e.lr_scheduler.last_batch_iteration for e in (first, second)]
    assert positions == [7, 7]
    first.destroy()
    second.destroy()


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
    assert [one[1:] for one in said] == [one[1:] for one in expected]
    # The engine shows the next round's values, as DeepSpeed's does.
    assert [one[0] for one in said[:-1]] == [one[0] for one in expected[1:]]
    for a, b in zip(engine.module.parameters(), module.parameters(), strict=True):
        assert torch.equal(a, b)
    rounds = MICRO_BATCHES // 2
    assert 0 < engine.skipped_steps < rounds and engine.global_steps == rounds
    assert scheduler.last_batch_iteration == optimizer.opt_step - 1
    engine.destroy()
