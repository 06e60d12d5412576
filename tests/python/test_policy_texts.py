"""What ballast.schedules and DynamicLossScale refuse, the service refuses with the same words."""

import dataclasses

import pytest

import ballast
import ballast.torch as bt
from ballast import backend, config, schedules, session
from real_training import fresh_job

pytestmark = pytest.mark.e2e

CYCLE = {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2}
SCHEDULES = [
    ("WarmupLR", {"warmup_num_steps": 0}),
    ("WarmupLR", {"warmup_num_steps": -3}),
    ("WarmupLR", {"warmup_min_lr": float("inf")}),
    ("WarmupLR", {"warmup_max_lr": [0.1, float("nan")]}),
    ("WarmupLR", {"warmup_max_lr": -1e-3}),
    ("WarmupLR", {"warmup_max_lr": 1e19}),
    ("WarmupDecayLR", {"total_num_steps": -1}),
    ("WarmupDecayLR", {"total_num_steps": 9, "warmup_num_steps": 0}),
    ("WarmupCosineLR", {"total_num_steps": 9, "cos_min_ratio": -0.5}),
    ("LRRangeTest", {"lr_range_test_step_size": 0}),
    ("LRRangeTest", {"lr_range_test_step_rate": -2.5}),
    ("OneCycle", {**CYCLE, "cycle_first_step_size": 0}),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": -1.5}),
    ("OneCycle", {**CYCLE, "cycle_max_mom": 1.0}),
    ("OneCycle", {**CYCLE, "cycle_min_mom": -0.25}),
    ("OneCycle", {**CYCLE, "decay_mom_rate": -1e20}),
    ("OneCycle", {**CYCLE, "cycle_first_stair_count": -1}),
    ("OneCycle", {**CYCLE, "decay_step_size": float("nan")}),
    ("OneCycle", {**CYCLE, "decay_step_size": -3.0}),
]
SCALES = [
    {"initial_scale_power": 127},
    {"initial_scale_power": -1},
    {"loss_scale_window": 0},
    {"hysteresis": -2},
    {"min_loss_scale": 0.0},
    {"min_loss_scale": 2.0**17},
    {"min_loss_scale": 2.0**-30},
]


def unchecked(kind, arguments):
    """An object of `kind` that its constructor would refuse."""
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        value = arguments.get(field.name, field.default)
        value = tuple(value) if isinstance(value, list) else value
        object.__setattr__(made, field.name, value)
    return made


def words_of_the_service(address, **policy):
    """The error of an attach with a policy that no constructor has checked."""
    settings = dataclasses.replace(
        config.resolve(endpoints=address, job=fresh_job("texts"), durability="none"), **policy
    )
    specs = [session.TensorSpec(str(g), (0,), "float32", g, ()) for g in range(2)]
    numbers = ("AdamW", {"amsgrad": 0.0, "maximize": 0.0})
    operation = backend.core().start_attach(
        options=session.job_options(settings, numbers, [0, 1]),
        pauses=backend.core().PauseQueue(),
        tensors=[tuple(spec) for spec in specs],
        weights=[8, 8],
    )
    with pytest.raises(ballast.BadHyperparam) as caught:
        while not operation.wait(0.1):
            pass
    return caught.value.message


def our_words(kind, arguments):
    with pytest.raises(ballast.BadHyperparam) as caught:
        kind(**arguments)
    return caught.value.message


@pytest.mark.parametrize("name, arguments", SCHEDULES)
def test_a_schedule_is_refused_with_the_words_of_the_service(shared_servers, name, arguments):
    kind = schedules.ALL[name]
    (address,) = shared_servers(1)
    theirs = words_of_the_service(address, lr_schedule=unchecked(kind, arguments))
    assert our_words(kind, arguments) in theirs


@pytest.mark.parametrize("arguments", SCALES)
def test_a_loss_scale_is_refused_with_the_words_of_the_service(shared_servers, arguments):
    (address,) = shared_servers(1)
    theirs = words_of_the_service(address, loss_scale=unchecked(bt.DynamicLossScale, arguments))
    assert our_words(bt.DynamicLossScale, arguments) in theirs
