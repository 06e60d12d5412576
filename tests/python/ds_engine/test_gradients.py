"""Gradients that a script reads and writes between backward() and step(), by DeepSpeed's names."""

from __future__ import annotations

import ballast.deepspeed as deepspeed
import pytest
import torch
from ballast.deepspeed.utils import safe_get_full_grad, safe_set_full_grad
from ballast.deepspeed.utils.tensor_fragment import safe_get_full_grad as same
from ballast.errors import BadArgument, Unsupported

HALF = {"fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1}}


def begun(**more):
    torch.manual_seed(0)
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0,
              "optimizer": {"type": "SGD", "params": {"lr": 1.0}}, **more}  # fmt: skip
    return deepspeed.initialize(model=torch.nn.Linear(4, 2), config=config)[0]


def passed(engine):
    x = torch.ones(2, 4, dtype=engine.module.weight.dtype)
    engine.backward(engine(x).float().sum())
    return engine.module.weight


@pytest.mark.parametrize(("more", "value"), [
    ({}, 2.0), ({"gradient_accumulation_steps": 2}, 1.0), ({"bf16": {"enabled": True}}, 2.0),
    (HALF, 32.0),
])  # fmt: skip
def test_a_gradient_is_read_in_fp32(fake, more, value):
    engine = begun(**more)
    weight = passed(engine)
    gradient = safe_get_full_grad(weight)
    assert gradient.dtype == torch.float32 and gradient.shape == weight.shape
    assert gradient.eq(value).all() and same is safe_get_full_grad


def test_a_parameter_of_no_engine_and_one_without_a_gradient(fake):
    engine = begun()
    assert safe_get_full_grad(engine.module.weight) is None
    free = torch.nn.Parameter(torch.ones(2))
    safe_set_full_grad(free, torch.ones(2))
    assert free.grad is None and safe_get_full_grad(free) is None


def test_several_trainers_read_their_mean_at_the_end_of_a_round(fake, monkeypatch):
    engine = begun(gradient_accumulation_steps=2)
    monkeypatch.setattr(type(engine), "world_size", 2)
    weight = passed(engine)
    assert safe_get_full_grad(weight).eq(1).all()  # its own: the round goes on
    engine.step()
    passed(engine)
    with pytest.raises(Unsupported, match=r"init_distributed\(\) first"):
        safe_get_full_grad(weight)
    monkeypatch.setattr(deepspeed.comm, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    sums = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda sent: sums.append(sent.add_(1)))
    assert safe_get_full_grad(weight).eq(1.5).all()  # (2 + 1) / 2
    with engine.no_sync():
        assert safe_get_full_grad(weight).eq(2).all()
    weight.grad = None
    assert safe_get_full_grad(weight).eq(0.5).all()  # the other one has a gradient
    monkeypatch.setattr(torch.distributed, "all_reduce", sums.append)
    assert safe_get_full_grad(weight) is None and len(sums) == 3


@pytest.mark.parametrize("passes_of_round", [(1, 1), (2,)])
def test_a_sum_in_fp32_is_read_and_replaced_as_a_whole(fake, passes_of_round):
    """As several micro-batches, and as several backward passes of one."""
    engine = begun(gradient_accumulation_steps=len(passes_of_round), bf16={"enabled": True},
                   data_types={"grad_accum_dtype": "fp32"})  # fmt: skip
    torch.nn.init.zeros_(engine.module.weight)
    sum_of_round, steps = 2.0 * sum(passes_of_round) / len(passes_of_round), 0
    for written, weights in ((None, -sum_of_round), (8.0, -sum_of_round - 8)):
        for passes in passes_of_round:
            for _ in range(passes):
                weight = passed(engine)
            steps += 1
            if steps % len(passes_of_round) == 0:
                whole = safe_get_full_grad(weight)
                assert whole.dtype == torch.float32 and whole.eq(sum_of_round).all()
                if written is not None:
                    safe_set_full_grad(weight, torch.full((2, 4), written))
                    assert safe_get_full_grad(weight).eq(written).all()
            engine.step()
        assert engine.module.weight.eq(weights).all()
    assert safe_get_full_grad(weight) is None


@pytest.mark.parametrize("through", ["safe_set_full_grad", "p.grad"])
def test_gradients_that_a_script_writes_have_the_loss_scale(fake, through):
    engine = begun(**HALF)
    scaler, before = engine.optimizer.loss_scaler, engine.module.weight.detach().clone()
    for scale, value in ((16.0, float("inf")), (8.0, 0.25)):  # it halves where one is not finite
        assert scaler.cur_scale == engine.optimizer.loss_scale_config.cur_scale == scale
        if through == "p.grad":
            for p in engine.module.parameters():
                p.grad = torch.full_like(p, value * scale)
        else:
            weight = passed(engine)
            safe_set_full_grad(weight, torch.full((2, 4), value * scale))
            assert weight.grad.dtype == torch.float16
        engine.step()
        assert engine.optimizer.overflow == (scale == 16.0)
    assert scaler.dynamic_loss_scale and engine.optimizer.needs_scaler()
    with pytest.raises(RuntimeError, match="Loss scaling is required"):
        engine(torch.ones(2, 4).half()).sum().backward()
    assert torch.allclose(before - engine.module.weight, torch.tensor(0.25).half(), atol=1e-3)


def test_calls_that_deepspeed_answers_with_an_assertion(fake):
    engine = begun()
    with engine.no_sync():
        for again in (engine.no_sync, engine.coalesce_grad_reduction):
            with pytest.raises(AssertionError, match="reentry is unsupported: nested"), again():
                pass
        with pytest.raises(AssertionError, match="illegal to call Engine.step"):
            engine.step()
    with pytest.raises(AssertionError, match="a scalar tensor"):
        engine.scale(torch.ones(2))
    with engine.coalesce_grad_reduction():
        assert passed(engine).grad.eq(2).all() and passed(engine).grad.eq(4).all()
        with pytest.raises(AssertionError, match="illegal to call Engine.step"):
            engine.step()
    engine.step()
    assert engine.global_steps == 1
    unmanaged = begun(managed_gradient_accumulation=False)
    with pytest.raises(AssertionError, match="set_gradient_accumulation_boundary"):
        unmanaged.set_gradient_accumulation_boundary(True)
    with pytest.raises(AssertionError, match="coalesce_grad_reduction"):
        unmanaged.coalesce_grad_reduction()
    with pytest.raises(AssertionError, match="model is a NoneType"):
        deepspeed.initialize(torch.nn.Linear(1, 1), config={})
    with pytest.raises(BadArgument, match="dist_init_required=False"):
        deepspeed.initialize(model=torch.nn.Linear(1, 1), config={}, dist_init_required=False)
    class Mine(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    model = torch.nn.Linear(1, 1)
    with pytest.raises(AssertionError, match="Mine is not supported"):
        deepspeed.initialize(model=model, optimizer=Mine(model.parameters()), config={
            "train_micro_batch_size_per_gpu": 1})  # fmt: skip
    config = {"train_batch_size": 1, "checkpoint": {"tag_validation": "foo"}}
    with pytest.raises(deepspeed.DeepSpeedConfigError, match="tag_validation") as caught:
        deepspeed.initialize(model=model, config=config)
    assert isinstance(caught.value, Unsupported) and caught.value.source == "<dict>"


def test_what_initialize_makes_is_of_deepspeeds_classes(fake):
    from ballast.deepspeed.ops.adam import FusedAdam
    from ballast.deepspeed.runtime import lr_schedules

    engine = begun(optimizer={"type": "Adam"}, scheduler={"type": "WarmupDecayLR", "params": {
        "total_num_steps": 9}})  # fmt: skip
    kinds = (lr_schedules.WarmupDecayLR, lr_schedules.WarmupLR, lr_schedules.OneCycle)
    assert [isinstance(engine.lr_scheduler, kind) for kind in kinds] == [True, True, False]
    assert isinstance(engine.optimizer, FusedAdam) and not isinstance(begun().optimizer, FusedAdam)
