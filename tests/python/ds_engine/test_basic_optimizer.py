"""optimizer.optimizer of an engine, and isinstance() of DeepSpeed's optimizer classes."""

from __future__ import annotations

import gc
from collections import Counter

import ballast.deepspeed as deepspeed
import pytest
import torch
from ballast.deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from ballast.deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from ballast.deepspeed.ops.lamb import FusedLamb
from ballast.deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from ballast.errors import BadArgument, Unsupported

CLASSES = (DeepSpeedCPUAdagrad, DeepSpeedCPUAdam, FusedAdam, FusedLamb, DeepSpeedCPULion, FusedLion)


def begun(kind="AdamW", **more):
    torch.manual_seed(0)
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0,
              "optimizer": {"type": kind, "params": {"lr": 0.1}}}  # fmt: skip
    return deepspeed.initialize(model=torch.nn.Linear(4, 2), config=config, **more)[0]


def train(engine, rounds):
    for _ in range(rounds):
        engine.backward(engine(torch.ones(2, 4)).sum())
        engine.step()


def test_rates_that_are_written_inside_count_also_from_a_schedule_of_torch(fake):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1, gamma=0.5)

    engine = begun(lr_scheduler=schedule)
    inside = engine.optimizer.optimizer
    assert inside is engine.optimizer.optimizer and isinstance(inside, torch.optim.Optimizer)
    assert inside.param_groups is engine.optimizer.param_groups
    assert not hasattr(inside, "optimizer")  # where scripts stop that unwrap until the end
    train(engine, 1)
    assert engine.get_lr() == [0.05]
    engine.optimizer.load_state_dict(engine.optimizer.state_dict())
    before = engine.module.bias.detach().clone()
    for group in inside.param_groups:
        group["lr"] = 0.0
    train(engine, 1)
    assert torch.equal(engine.module.bias, before)


def test_the_state_is_read_whole_and_never_written_without_a_word(fake):
    engine = begun()
    inside, weight = engine.optimizer.optimizer, engine.module.weight
    assert inside.state == {}
    train(engine, 2)
    exported = engine.optimizer.export_state()["state"][0]
    state = inside.state
    assert list(state) == list(engine.module.parameters())
    assert sorted(state[weight]) == ["exp_avg", "exp_avg_sq", "step"]
    assert all(torch.equal(value, exported[key]) for key, value in state[weight].items())
    with pytest.raises(RuntimeError, match="[Ii]nplace update"), torch.no_grad():
        state[weight]["exp_avg"].zero_()
    with pytest.raises(TypeError):
        state[weight]["exp_avg"] = torch.zeros(2, 4)
    with pytest.raises(TypeError):
        state[weight] = {}
    with pytest.raises(Unsupported, match=r"load_export\(\)"):
        inside.state = {}
    with pytest.raises(Unsupported, match=r"call engine.step\(\)"):
        inside.step()
    assert inside.state_dict() == engine.optimizer.state_dict()
    del engine
    gc.collect()
    with pytest.raises(BadArgument, match="keep the engine"):
        inside.zero_grad()


def test_hooks_run_or_are_refused(fake):
    engine = begun()
    outside, inside, seen = engine.optimizer, engine.optimizer.optimizer, Counter()

    def counts(name):
        return lambda *_: seen.update([name])

    for name in ("register_step_pre_hook", "register_step_post_hook"):
        with pytest.raises(Unsupported, match=f"{name}.*register it on engine.optimizer"):
            getattr(inside, name)(counts("refused"))
        getattr(outside, name)(counts(name))
    train(engine, 2)
    assert seen == {"register_step_pre_hook": 2, "register_step_post_hook": 2}
    seen.clear()
    of_state = [f"register_{kind}state_dict_{when}_hook"
                for kind in ("", "load_") for when in ("pre", "post")]  # fmt: skip
    handles = [getattr(inside, name)(counts(name), prepend=True) for name in of_state]
    for view in (inside, outside):
        view.load_state_dict(view.state_dict())
    assert seen == dict.fromkeys(of_state, 2)
    for handle in handles:
        handle.remove()
    inside.load_state_dict(inside.state_dict())
    assert sum(seen.values()) == 8


def test_a_view_whose_engine_is_gone_is_of_no_class(fake):
    inside = begun().optimizer.optimizer
    gc.collect()
    assert not any(isinstance(inside, one) for one in CLASSES)


@pytest.mark.parametrize(("kind", "known"), [
    ("AdamW", {DeepSpeedCPUAdam, FusedAdam}), ("Lion", {DeepSpeedCPULion, FusedLion}),
    ("Adagrad", {DeepSpeedCPUAdagrad}), ("Lamb", {FusedLamb}), ("SGD", set()),
])  # fmt: skip
def test_both_optimizers_are_of_deepspeeds_classes(fake, kind, known):
    engine = begun(kind)
    for optimizer in (engine.optimizer, engine.optimizer.optimizer):
        assert {one for one in CLASSES if isinstance(optimizer, one)} == known
    decoupled = getattr(engine.optimizer.optimizer, "adam_w_mode", None)
    assert decoupled is (True if kind == "AdamW" else None)


@pytest.mark.parametrize("known", CLASSES[:3])
def test_a_class_of_the_script_that_would_not_run_is_refused(fake, known):
    class Mine(known):
        def step(self, closure=None):
            raise AssertionError

    assert not isinstance(begun().optimizer, Mine)
    with pytest.raises(Unsupported, match=f"Mine derives from {known.__name__}"):
        Mine([torch.nn.Parameter(torch.ones(1))])
