"""The engine as a torch.nn.Module, its getters, and an engine without an optimizer."""

from __future__ import annotations

import shutil

import ballast.deepspeed as deepspeed
import pytest
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 2, "steps_per_print": 1000,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
}  # fmt: skip


def begun(module=None, **more):
    torch.manual_seed(0)
    module = module or torch.nn.Linear(4, 2)
    return deepspeed.initialize(model=module, config={**CONFIG, **more})[0]


def test_the_engine_is_a_module_around_the_model_as_deepspeeds(fake):
    engine = begun(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2)))
    assert isinstance(engine, torch.nn.Module) and engine.module in list(engine.children())
    assert [n for n, _ in engine.named_parameters()][:2] == ["module.0.weight", "module.0.bias"]
    assert list(engine.state_dict()) == [f"module.{n}" for n in engine.module.state_dict()]
    assert list(map(id, engine.parameters())) == list(map(id, engine.module.parameters()))
    state = {name: value.clone() + 1 for name, value in engine.state_dict().items()}
    engine.load_state_dict(state)
    assert torch.equal(engine.module[1].running_var, state["module.1.running_var"])
    assert engine.eval() is engine and not engine.module[1].training and not engine.training
    engine.train()
    assert engine.module[1].training and engine.training
    assert engine.to(torch.float64) is engine and engine.module[0].weight.dtype == torch.float64
    assert engine.append == engine.module.append and engine.device == torch.device("cpu")
    hooked = []
    engine.register_forward_hook(lambda *given: hooked.append(given))
    engine(torch.ones(2, 4, dtype=torch.float64))
    assert len(hooked) == 1
    engine.compile(backend="eager")
    assert engine.module._compiled_call_impl is not None
    assert (engine.global_rank, engine.local_rank, engine.world_size) == (0, 0, 1)


@pytest.mark.parametrize(("more", "says"), [
    ({}, {"fp16_enabled": False, "bfloat16_enabled": False, "zero_optimization": False,
          "gradient_clipping": 1.0, "zero_optimization_stage": 0, "dynamic_loss_scale": True,
          "get_data_types": (torch.float32, torch.float32), "get_global_steps": 0,
          "optimizer_name": "AdamW", "scheduler_name": None, "steps_per_print": 1000,
          "wall_clock_breakdown": False, "managed_gradient_accumulation": True}),
    ({"fp16": {"enabled": True, "loss_scale": 8}, "gradient_clipping": 0.5,
      "zero_optimization": {"stage": 2}, "scheduler": {"type": "WarmupLR", "params": {}}},
     {"fp16_enabled": True, "zero_optimization": True, "gradient_clipping": 0.5,
      "dynamic_loss_scale": False, "zero_optimization_partition_gradients": True,
      "zero_optimization_partition_weights": False, "scheduler_name": "WarmupLR",
      "get_data_types": (torch.float16, torch.float16), "loss_scale": 8.0}),
    ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
     {"bfloat16_enabled": True, "get_data_types": (torch.bfloat16, torch.float32),
      "initial_dynamic_scale": 65536.0}),
])  # fmt: skip
def test_getters_say_what_the_configuration_says(fake, more, says):
    engine = begun(**more)
    assert {name: getattr(engine, name)() for name in says} == says


def test_the_optimizer_tells_its_scale_by_deepspeeds_names(fake):
    fp16 = {"enabled": True, "initial_scale_power": 4, "hysteresis": 1, "loss_scale_window": 7}
    engine = begun(fp16=fp16)
    optimizer = engine.optimizer
    assert optimizer.dynamic_loss_scale and optimizer.loss_scale_config.cur_scale == 16.0
    for factor in (1.0, float("nan")):
        engine.backward(engine(torch.ones(2, 4).half()).sum() * factor)
        engine.step()
        assert optimizer.overflow == (factor != 1.0)
    config = optimizer.loss_scale_config
    assert (config.cur_scale, config.scale_window, config.scale_factor) == (8.0, 7, 2.0)
    fixed = begun(fp16={"enabled": True, "loss_scale": 8}).optimizer
    assert not fixed.dynamic_loss_scale and fixed.loss_scale_config.cur_scale == 8.0


def without(module, **more):
    config = {key: value for key, value in CONFIG.items() if key != "optimizer"}
    return deepspeed.initialize(model=module, config={**config, **more})


def test_an_engine_without_an_optimizer_computes(fake):
    engine, optimizer, _, schedule = without(
        torch.nn.Linear(4, 2), bf16={"enabled": True},
        scheduler={"type": "WarmupLR", "params": {}})
    assert (engine.optimizer, optimizer, schedule) == (None, None, None)
    with torch.no_grad():
        assert engine(torch.ones(2, 4).bfloat16()).dtype == torch.bfloat16
    engine.eval()
    assert (engine.get_lr(), engine.get_mom(), engine.get_global_grad_norm()) == ([], [], None)
    assert (engine.world_size, engine.global_rank, engine.loss_scale()) == (1, 0, 1.0)
    assert engine.optimizer_name() is None and engine.zero_grad() is None
    loss = engine(torch.ones(2, 4).bfloat16()).sum()
    for call in (engine.backward, engine.scale, lambda _: engine.step()):
        with pytest.raises(AssertionError, match="needs an optimizer, and initialize"):
            call(loss)
    engine.destroy()
    assert not fake.attached


def test_all_trainers_wait_for_what_rank_0_saves(fake, monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "barrier",
                        lambda: written.append((tmp_path / "t" / "checkpoint.json").exists()))
    engine = without(torch.nn.Linear(4, 2))[0]
    assert engine.sparse_tensor_module_names == set()
    engine.save_checkpoint(tmp_path, tag="t")
    assert written[-1:] == [True]
    # Another trainer reaches the load while rank 0 still writes.
    monkeypatch.setattr(torch.distributed, "barrier",
                        lambda: shutil.copytree(tmp_path / "t", tmp_path / "late"))
    assert engine.load_checkpoint(tmp_path, "late", load_module_only=True)[0] is not None


def test_its_weights_are_rank_0s_over_torch_distributed(fake, monkeypatch, capfd):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    without(torch.nn.Linear(4, 2))
    assert "each trainer keeps the weights that it has" in capfd.readouterr().err
    sent = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda t, rank: sent.append((t, rank)))
    module = torch.nn.BatchNorm1d(2)
    without(module)
    assert len(sent) == 5 and all(rank == 0 for _, rank in sent)


@pytest.mark.parametrize("rank", [0, 1])
def test_several_trainers_have_one_models_weights_after_initialize(fake, monkeypatch, rank):
    """The fake's rank 0 has 0.5 everywhere. Then a script may call the model itself."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", str(rank))
    module = torch.nn.Linear(4, 2)
    before = module.weight.detach().clone()
    engine = begun(module)
    assert len(fake.attached) == 1
    assert torch.equal(module.weight, torch.full((2, 4), 0.5) if rank else before)
    engine.backward(module(torch.ones(2, 4)).sum())
    engine.step()
    assert engine.global_steps == 1
