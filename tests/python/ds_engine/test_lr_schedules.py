"""The classes of deepspeed.runtime.lr_schedules: DeepSpeed's doubles, and torch's optimizers."""

from __future__ import annotations

import ballast.deepspeed as deepspeed
import pytest
import torch
from ballast.deepspeed.runtime import lr_schedules
from ballast.errors import BadArgument
from policy_cases import VECTORS, cases, digest
from record_policy_vectors import run_schedule


def possible(case):
    """Not a momentum of 1 or more, which is refused here, and no check of momenta without use."""
    if case.kind not in lr_schedules.VALID_LR_SCHEDULES or case.steps > 100:
        return False
    if not case.arguments.get("cycle_momentum", True):
        return False
    momenta = [case.arguments.get(name, 0.0) for name in ("cycle_min_mom", "cycle_max_mom")]
    return all(max(m) < 1 if isinstance(m, list) else m < 1 for m in momenta)


def test_they_give_deepspeeds_doubles():
    recorded = [line for line in VECTORS.read_text().splitlines() if not line.startswith("#")]
    asked = [(case, line) for case, line in zip(cases(), recorded, strict=True) if possible(case)]
    seen = set()
    for case, line in asked[::20]:
        assert digest(run_schedule(lr_schedules, case)) == line, case.line()
        seen.add((case.kind, line == "refused"))
    assert {(kind, False) for kind in lr_schedules.VALID_LR_SCHEDULES} <= seen
    assert any(refused for _, refused in seen) and len(asked) > 2000


def sgd(rate=0.1):
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)


def test_a_rate_that_is_a_tensor_stays_that_tensor():
    rate = torch.full((1,), 0.1, dtype=torch.float64)
    optimizer = sgd(rate)
    schedule = lr_schedules.WarmupLR(optimizer, 0.0, None, 4, "linear")
    schedule.step(2)
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.05
    assert schedule.get_last_lr()[0] is rate and schedule.get_lr() == [0.05]


def test_it_continues_at_a_position_and_names_what_does_not_fit():
    schedule = lr_schedules.WarmupDecayLR(sgd(), 10, 0.0, 0.5, 2, "linear", 5)
    assert schedule.state_dict() == {"last_batch_iteration": 5} and schedule.get_lr() == [0.3125]
    schedule.load_state_dict({"last_batch_iteration": 0})
    schedule.step()
    assert schedule.get_last_lr() == [0.25]
    with pytest.raises(BadArgument, match="lists have 2 values, and the optimizer has 1 group"):
        lr_schedules.WarmupLR(sgd(), [0.1, 0.2], [1, 2])
    with pytest.raises(BadArgument, match="optimizer is a int"):
        lr_schedules.WarmupLR(3)
    with pytest.warns(UserWarning, match="no betas"):
        assert lr_schedules.OneCycle(sgd(), 0.1, 1.0).get_mom() is None
    assert lr_schedules.WARMUP_NUM_STEPS == "warmup_num_steps"
    with pytest.warns(UserWarning, match="'square' is unknown; log takes its place"):
        cosine = lr_schedules.WarmupCosineLR(sgd(), 5, warmup_num_steps=1, warmup_type="square")
    assert (cosine.warmup_type, cosine.warmup_num_steps, cosine.get_lr_ratio()) == ("log", 2, 0)
    cycle = lr_schedules.OneCycle(sgd(), 0.1, [1.0], cycle_first_step_size=3, cycle_momentum=False)
    assert (cycle.min_lrs, cycle.max_lrs, cycle.step_ratio) == ([0.1], [1.0], 0.5)


@pytest.mark.parametrize("as_function", [False, True])
def test_initialize_takes_one(fake, as_function):
    module = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1.0)

    def make(opt):
        return lr_schedules.WarmupLR(opt, warmup_num_steps=4, warmup_type="linear")

    engine, *_, schedule = deepspeed.initialize(
        model=module, optimizer=optimizer, config={"train_micro_batch_size_per_gpu": 1},
        lr_scheduler=make if as_function else make(optimizer))  # fmt: skip
    used = []
    for _ in range(4):
        engine.backward(engine(torch.ones(1, 2)).sum())
        engine.step()
        used.append(schedule.get_last_lr()[0])
    assert used == [0.0, 0.25, 0.5, 0.75]
