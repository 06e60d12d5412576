"""Learning rates and betas as scripts read them: DeepSpeed 0.19.8's, after each micro-batch.

The doubles were read off DeepSpeed's engine, with these configurations and two groups; those of all
positions are held against runtime.lr_schedules, which test_lr_schedules.py holds against DeepSpeed.
"""

from __future__ import annotations

import math

import ballast.deepspeed as deepspeed
import pytest
import torch
from ballast import control
from ballast.deepspeed.runtime import lr_schedules
from ballast.torch.scheduled import ScheduledRates
from test_checkpoint import FakeControl

SCHEDULES = {
    "WarmupLR": {"warmup_num_steps": 3},
    "WarmupDecayLR": {
        "total_num_steps": 6, "warmup_num_steps": 3, "warmup_max_lr": 0.5, "warmup_type": "linear",
    },
    "WarmupCosineLR": {"total_num_steps": 6, "warmup_num_steps": 3, "warmup_min_ratio": 0.1},
    "LRRangeTest": {
        "lr_range_test_min_lr": 0.25, "lr_range_test_step_size": 2,
        "lr_range_test_staircase": True,
    },
    "OneCycle": {
        "cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_first_step_size": 2, "decay_step_size": 1,
        "decay_lr_rate": 0.5,
    },
}  # fmt: skip
# Of DeepSpeed: before the first round, after the first and after the second one.
SEEN = {
    "WarmupLR": ([0.0, 0.0], [0.0, 0.0], [0.07886621919643216, 0.31546487678572865]),
    "WarmupDecayLR": ([0.0, 0.0], [0.0, 0.0], [0.16666666666666666, 0.16666666666666666]),
    "WarmupCosineLR": ([0.0, 0.0], [0.0125, 0.05], [0.08347959727678894, 0.33391838910715577]),
    "LRRangeTest": ([0.25, 0.25], [0.25, 0.25], [0.5, 0.5]),
    "OneCycle": ([0.1, 0.1], [0.30000000000000004, 0.30000000000000004], [0.5, 0.5]),
}


def groups(module):
    return [{"params": [("weight", module.weight)]},
            {"params": [("bias", module.bias)], "lr": 0.5}]  # fmt: skip


def begun(kind, **more):
    torch.manual_seed(0)
    module = torch.nn.Linear(2, 1)
    config = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.125}},
        "scheduler": {"type": kind, "params": SCHEDULES[kind]},
        "ballast": {"profile": "deepspeed"}, **more,
    }  # fmt: skip
    engine, _, _, schedule = deepspeed.initialize(
        model=module, model_parameters=groups(module), config=config)
    return engine, schedule


def oracle(kind):
    """DeepSpeed's schedule on an optimizer of torch with the same groups."""
    given = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)]
    given[1]["lr"] = 0.5
    optimizer = torch.optim.AdamW(given, lr=0.125)
    return optimizer, getattr(lr_schedules, kind)(optimizer, **SCHEDULES[kind])


@pytest.mark.parametrize("kind", SCHEDULES)
def test_rates_are_those_of_the_next_round_after_each_micro_batch(fake, kind):
    engine, schedule = begun(kind)
    torchs, theirs = oracle(kind)

    def same():
        rates = [group["lr"] for group in torchs.param_groups]
        shown = [(g["lr"], g["betas"]) for g in engine.optimizer.param_groups]
        assert shown == [(g["lr"], g["betas"]) for g in torchs.param_groups]
        assert engine.get_lr() == schedule.get_lr() == schedule.get_last_lr() == rates
        assert engine.get_mom() == [g["betas"] for g in torchs.param_groups]
        momenta = engine.get_mom() if schedule.last_batch_iteration >= 0 else [(0.9, 0.99)] * 2
        assert schedule.get_mom() == (momenta if kind == "OneCycle" else None)
        assert schedule.last_batch_iteration == theirs.last_batch_iteration
        return rates

    seen = [same()]
    for i in range(16):
        loss = engine(torch.ones(1, 2)).sum()
        engine.backward(loss * math.nan if i == 9 else loss)  # round 4 is skipped
        same()
        engine.step()
        if i % 2 and i != 9:
            theirs.step()
        seen.append(same())
    assert engine.skipped_steps == 1
    assert (seen[0], seen[2], seen[4]) == SEEN[kind]


def test_the_rates_that_a_group_was_made_with_are_taken_once(fake):
    """A schedule does not start from the shown rates of groups, however often they are shown."""
    engine, schedule = begun("WarmupCosineLR")
    optimizer = engine.optimizer
    optimizer.attach()
    assert schedule.get_lr() == [0.0, 0.0]
    for _ in range(4):
        engine.backward(engine(torch.ones(1, 2)).sum())
        engine.step()
    own = [one[0] for call in fake.last.calls if call[0] == "step" for one in call[1]]
    assert own == [0.125, 0.5] * 2
    rates = ScheduledRates(optimizer._membership.config.lr_schedule, optimizer._kind)
    shown = [{"lr": torch.tensor(0.125, dtype=torch.float64), "betas": (0.9, 0.999)}]
    for index in (-1, 0, 0):
        rates.show_next(shown, index, "exact")
    assert shown[0]["lr"] == 0.0125


def test_a_load_into_a_running_engine_keeps_them(fake, monkeypatch, tmp_path):
    monkeypatch.setattr(control, "of", lambda config: FakeControl(fake))
    engine, schedule = begun("WarmupCosineLR")

    def train(rounds):
        for _ in range(2 * rounds):
            engine.backward(engine(torch.ones(1, 2)).sum())
            engine.step()

    train(2)
    engine.save_checkpoint(tmp_path)
    saved = schedule.get_lr()
    train(2)
    fake.policy_said = {"schedule_index": 1, "rates": [(9.0, 0.9, 0.999), (9.0, 0.9, 0.999)]}
    engine.load_checkpoint(tmp_path)
    assert engine.get_lr() == saved == SEEN["WarmupCosineLR"][2]
    assert [g["lr"] for g in engine.optimizer.param_groups] == saved
    train(1)
    own = [one[0] for call in fake.last.calls if call[0] == "step" for one in call[1]]
    assert own == [0.125, 0.5]
