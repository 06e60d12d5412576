"""ballast.deepspeed over a pure-Python service: the bits of torch's loop, DeepSpeed's counters."""

from __future__ import annotations

import argparse
import json
import math

import ballast.deepspeed as deepspeed
import ballast.torch as bt
import pytest
import torch
from ballast.deepspeed.boundary import Boundary
from ballast.errors import BadArgument, Unsupported

MICRO = "train_micro_batch_size_per_gpu"
ADAMW = {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}


def config(**more):
    return {MICRO: 4, "optimizer": ADAMW, "gradient_clipping": 0.0, **more}


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def batch(i, dtype=torch.float32):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(i)).to(dtype)


def train(engine, micro_batches, dtype=torch.float32):
    losses = []
    for i in range(micro_batches):
        loss = engine(batch(i, dtype)).square().mean()
        losses.append(engine.backward(loss).item())
        engine.step()
    return losses


def torch_loop(accumulation, rounds, clip=None, schedule=None):
    """Plain torch, of the same arithmetic: the loss is divided, then backward."""
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    scheduler = schedule(optimizer) if schedule else None
    for i in range(rounds * accumulation):
        (module(batch(i)).square().mean() / accumulation).backward()
        if (i + 1) % accumulation == 0:
            if clip:
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler:
                scheduler.step()
    return module


def same(engine, module):
    for a, b in zip(engine.module.parameters(), module.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_loop_has_the_bits_of_torch(fake, accumulation):
    module = model()
    engine, optimizer, loader, scheduler = deepspeed.initialize(
        model=module, config=config(gradient_accumulation_steps=accumulation))
    assert engine.module is module and engine.optimizer is optimizer
    assert (loader, scheduler) == (None, None)
    train(engine, 4 * accumulation)
    same(engine, torch_loop(accumulation, 4))
    assert (engine.micro_steps, engine.global_steps) == (4 * accumulation, 4)
    assert engine.global_samples == 16 * accumulation and engine.skipped_steps == 0
    assert engine.was_step_applied() and all(p.grad is None for p in module.parameters())


def test_ballast_run_names_the_configuration_and_its_precision(fake, tmp_path, monkeypatch):
    (tmp_path / "ds.json").write_text(json.dumps(config(bf16={"enabled": "auto"})))
    monkeypatch.setenv("BALLAST_DS_CONFIG", str(tmp_path / "ds.json"))
    monkeypatch.setenv("BALLAST_MIXED_PRECISION", "bf16")
    engine = deepspeed.initialize(model=model())[0]
    assert next(engine.parameters()).dtype == torch.bfloat16
    args = argparse.Namespace(deepspeed_config=str(tmp_path / "ds.json"))
    assert deepspeed.initialize(args, model=model())[0].train_batch_size() == 4
    with pytest.raises(BadArgument, match="initialize.. got a dict, and ballast-run --ds-config"):
        deepspeed.initialize(model=model(), config=config(steps_per_print=3))
    with pytest.raises(Unsupported, match="ACCELERATE_USE_DEEPSPEED.*ballast-run --ds-config"):
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
        deepspeed.initialize(model=model())


def test_no_gradient_outlives_a_round(fake):
    """Neither those of parameters that the optimizer lacks, nor those outside of the module."""
    module, outside = model(), torch.nn.Parameter(torch.ones(3))
    for p in module[2].parameters():
        p.requires_grad_(False)
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=module, model_parameters=[*named, ("outside", outside)], config=config())
    for p in module[2].parameters():
        p.requires_grad_(True)
    module.append(torch.nn.Linear(3, 3))
    loss = engine(batch(0)) + outside
    engine.backward(loss.square().mean())
    held = [*module.parameters(), outside]
    assert all(p.grad is not None for p in held) and len(held) == 7
    engine.step()
    assert [p.grad for p in held] == [None] * 7


def test_a_step_inside_a_window_does_nothing(fake):
    engine = deepspeed.initialize(model=model(), config=config(gradient_accumulation_steps=3))[0]
    before = [p.clone() for p in engine.parameters()]
    train(engine, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, engine.parameters()))
    assert engine.global_steps == 0 and not engine.was_step_applied()
    assert all(p.grad is not None for p in engine.parameters())
    assert engine.is_gradient_accumulation_boundary()


def test_backward_returns_the_divided_loss_and_may_leave_it(fake):
    engine = deepspeed.initialize(model=model(), config=config(gradient_accumulation_steps=2))[0]
    loss = engine(batch(0)).square().mean()
    assert engine.backward(loss, retain_graph=True).item() == (loss / 2).item()
    assert engine.backward(loss, scale_wrt_gas=False).item() == loss.item()
    with pytest.raises(BadArgument, match="one element"):
        engine.backward(engine(batch(0)))


def test_a_schedule_moves_with_the_rounds(fake):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    engine, optimizer, _, scheduler = deepspeed.initialize(
        model=model(), config=config(gradient_accumulation_steps=2), lr_scheduler=schedule)
    train(engine, 6)
    same(engine, torch_loop(2, 3, schedule=schedule))
    assert scheduler.optimizer is optimizer and engine.get_lr() == [0.01 / 8]


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)


def warm_up_and_cosine(optimizer):
    schedules = torch.optim.lr_scheduler
    warm_up = schedules.LinearLR(optimizer, 0.1, total_iters=2)
    cosine = schedules.CosineAnnealingLR(optimizer, T_max=6)
    return schedules.SequentialLR(optimizer, [warm_up, cosine], milestones=[2])


@pytest.mark.parametrize("schedule", [one_cycle, warm_up_and_cosine])
@pytest.mark.filterwarnings("error:Detected call", "error:a learning-rate scheduler")
def test_a_schedule_on_torchs_optimizer_drives_ours(fake, schedule):
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    engine, ours, _, scheduler = deepspeed.initialize(
        model=module, optimizer=optimizer, lr_scheduler=schedule(optimizer),
        config={MICRO: 4, "gradient_clipping": 0})
    ours.load_state_dict(ours.state_dict())  # The schedule still moves the groups that it holds.
    train(engine, 5)
    same(engine, torch_loop(1, 5, schedule=schedule))
    assert engine.get_lr() == scheduler.get_last_lr()


def test_a_skipped_round_counts_and_the_schedule_stays(fake):
    engine, _, _, scheduler = deepspeed.initialize(
        model=model(), config=config(),
        lr_scheduler=lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5))
    train(engine, 1)
    engine.backward(engine(batch(0)).sum() * math.nan)
    engine.step()
    assert (engine.global_steps, engine.skipped_steps, engine.global_samples) == (2, 1, 8)
    assert not engine.was_step_applied() and engine.get_lr() == [0.005]


def test_bf16_casts_the_module_and_keeps_fp32_masters(fake):
    engine = deepspeed.initialize(model=model(), config=config(bf16={"enabled": True}))[0]
    assert {p.dtype for p in engine.parameters()} == {torch.bfloat16}
    train(engine, 3, torch.bfloat16)
    assert engine.optimizer.export_state()["state"][0]["master"].dtype == torch.float32


@pytest.mark.parametrize("managed", [True, False])
def test_gradients_of_bf16_add_up_in_fp32_if_the_configuration_says_so(fake, managed):
    dtypes = {"data_types": {"grad_accum_dtype": "fp32"}, "bf16": {"enabled": True}}
    engine = deepspeed.initialize(model=model(), config=config(
        gradient_accumulation_steps=8, managed_gradient_accumulation=managed, **dtypes))[0]
    total = [0.0] * 4
    for i in range(8):
        engine.backward(engine(batch(i, torch.bfloat16)).square().mean())
        if managed or i == 7:
            engine.step()
    twin = model().bfloat16()
    for i in range(8):
        twin.zero_grad()
        (twin(batch(i, torch.bfloat16)).square().mean() / 8).backward()
        total = [t + p.grad.float() for t, p in zip(total, twin.parameters())]
    masters = [torch.nn.Parameter(p.detach().float()) for p in model().bfloat16().parameters()]
    for master, t in zip(masters, total):
        master.grad = t.bfloat16().float()
    torch.optim.AdamW(masters, lr=0.01, weight_decay=0.1, foreach=False).step()
    for ours, master in zip(engine.module.parameters(), masters):
        assert torch.equal(ours, master.bfloat16())
    assert engine.global_steps == 1 and all(p.grad is None for p in engine.module.parameters())


def test_fp16_multiplies_the_loss_by_its_fixed_scale(fake):
    fp16 = {"enabled": True, "loss_scale": 128}
    engine = deepspeed.initialize(model=model(), config=config(fp16=fp16))[0]
    assert engine.loss_scale() == 128.0
    engine.backward(engine(batch(0, torch.float16)).square().mean())
    scaled = engine.module[0].weight.grad.clone()
    other = model().half()
    other(batch(0, torch.float16)).square().mean().backward()
    ratio = scaled.float() / other[0].weight.grad.float()
    assert 120 < ratio.nanmedian() < 136


def test_fp16_without_a_fixed_scale_has_one_that_the_service_moves(fake):
    fp16 = {"enabled": True, "initial_scale_power": 4, "hysteresis": 1}
    engine = deepspeed.initialize(model=model(), config=config(fp16=fp16))[0]
    assert engine.loss_scale() == engine.optimizer.cur_scale == 16.0
    assert fake.last.options["loss_scale"] == (4, 1000, 1, False, 1.0)
    train(engine, 1, torch.float16)
    engine.backward(engine(batch(0, torch.float16)).sum() * math.nan)
    engine.step()
    assert (engine.skipped_steps, engine.optimizer.skipped_steps, engine.loss_scale()) == (1, 1, 8)
    train(engine, 1, torch.float16)
    assert (engine.global_steps, engine.optimizer.opt_step) == (3, 2)


def test_the_section_ballast_says_where_the_job_is_and_how_durable(fake):
    section = {"endpoints": "127.0.0.1:1, 127.0.0.1:2", "job": "of-file", "durability": "process"}
    engine = deepspeed.initialize(model=model(), config=config(ballast=section))[0]
    train(engine, 1)
    opt = engine.optimizer
    assert (opt.job, opt.durability) == ("of-file", "process")
    assert fake.last.options["endpoints"] == ("127.0.0.1:1", "127.0.0.1:2")


@pytest.mark.parametrize(
    "key, value", [("job", "b"), ("durability", "none"), ("endpoints", ["127.0.0.1:9"])]
)
def test_an_optimizer_that_is_not_that_of_the_section_is_refused(fake, key, value):
    net = model()
    made = {"endpoints": ["127.0.0.1:1"], "job": "a", "durability": "process"}
    opt = bt.AdamW(net.named_parameters(), max_grad_norm=1.0, **made)
    same = {"gradient_clipping": 1.0, "ballast": made}
    assert deepspeed.initialize(model=net, optimizer=opt, config=config(**same))[1] is opt
    other = {"gradient_clipping": 1.0, "ballast": {**made, key: value}}
    with pytest.raises(BadArgument, match=f"was made with {key}="):
        deepspeed.initialize(model=net, optimizer=opt, config=config(**other))


@pytest.mark.parametrize(
    "profile, stage, hysteresis",
    [("deepspeed", 0, 1), ("deepspeed", 2, 3), ("exact", 0, 3), (None, 0, 3)],
)
def test_stage_0_has_no_hysteresis_under_deepspeeds_profile(fake, profile, stage, hysteresis):
    fp16 = {"enabled": True, "initial_scale_power": 4, "hysteresis": 3}
    ballast = {} if profile is None else {"ballast": {"profile": profile}}
    given = config(fp16=fp16, zero_optimization={"stage": stage}, **ballast)
    assert deepspeed.initialize(model=model(), config=given)[0].loss_scale() == 16.0
    assert fake.last.options["loss_scale"] == (4, 1000, hysteresis, False, 1.0)


def test_the_loss_scale_of_each_round_reaches_the_monitors(fake, tmp_path):
    csv = {"enabled": True, "output_path": str(tmp_path), "job_name": "j"}
    fp16 = {"enabled": True, "initial_scale_power": 0}
    engine = deepspeed.initialize(model=model(), config=config(csv_monitor=csv, fp16=fp16))[0]
    train(engine, 1, torch.float16)
    engine.destroy()
    written = (tmp_path / "j" / "Train_Samples_loss_scale.csv").read_bytes()
    assert written == b"step,loss_scale\r\n4,1.0\r\n"


def test_a_schedule_of_the_configuration_is_the_services(fake):
    section = {"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_max_lr": [0.5]}}
    engine, optimizer, _, scheduler = deepspeed.initialize(
        model=model(), config=config(scheduler=section))
    assert scheduler is engine.lr_scheduler and scheduler.last_batch_iteration == -1
    train(engine, 3)
    assert fake.last.options["schedule"][0] == "WarmupDecayLR"
    assert fake.last.options["schedule"][1] == {
        "total_num_steps": 9.0, "warmup_min_lr": 0.0, "warmup_max_lr": [0.5],
        "warmup_num_steps": 1000.0, "warmup_type": "log"}
    scheduler.step()  # as scripts do that step it themselves
    scheduler.load_state_dict(scheduler.state_dict())
    assert scheduler.state_dict() == {"last_batch_iteration": 2}
    train(engine, 1)
    assert scheduler.last_batch_iteration == 3 and scheduler.optimizer is optimizer


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"])
def test_each_type_of_schedule_gets_its_params(fake, kind):
    needed = {"WarmupCosineLR": {"total_num_steps": 9},
              "OneCycle": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2}}
    section = {"type": kind, "params": needed.get(kind, {})}
    optimizer = deepspeed.initialize(model=model(), config=config(scheduler=section))[1]
    schedule = optimizer._membership.config.lr_schedule
    assert schedule == bt.schedules.ALL[kind](**needed.get(kind, {}))


def test_a_schedule_is_the_configurations_or_the_scripts(fake):
    section = {"type": "WarmupLR", "params": {}}
    module = model()
    with pytest.raises(BadArgument, match="lr_scheduler was given, .* scheduler.type WarmupLR"):
        deepspeed.initialize(model=module, config=config(scheduler=section),
                             lr_scheduler=lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1))
    ours = bt.AdamW(module.named_parameters(), lr=0.01)
    with pytest.raises(BadArgument, match="made with lr_schedule=None, .* says WarmupLR"):
        deepspeed.initialize(model=module, optimizer=ours, config=config(scheduler=section))


def test_the_batch_triangle_and_its_change(fake):
    engine = deepspeed.initialize(model=model(), config={
        "train_batch_size": 24, "gradient_accumulation_steps": 3, "optimizer": ADAMW})[0]
    assert engine.get_batch_info() == (24, 8, 3)
    engine.set_train_batch_size(16)
    assert engine.get_batch_info() == (16, 8, 2) and engine.gradient_accumulation_steps() == 2
    with pytest.raises(BadArgument, match="multiple of 8"):
        engine.set_train_batch_size(12)


def test_the_default_clipping_is_that_of_deepspeed(fake):
    engine = deepspeed.initialize(model=model(), config={MICRO: 4, "optimizer": ADAMW})[0]
    assert engine.optimizer._membership.config.max_grad_norm == 1.0
    assert engine.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_an_optimizer_of_torch_is_taken_over(fake):
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    engine, ours, _, _ = deepspeed.initialize(
        model=module, optimizer=optimizer, config={MICRO: 4, "gradient_clipping": 0})
    assert isinstance(ours, bt.AdamW)
    train(engine, 3)
    same(engine, torch_loop(1, 3))


def test_a_function_makes_the_optimizer(fake):
    engine = deepspeed.initialize(
        model=model(), config={MICRO: 4, "gradient_clipping": 0},
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1))[0]
    train(engine, 3)
    same(engine, torch_loop(1, 3))


def test_an_optimizer_of_ours_must_do_what_the_configuration_says(fake):
    module = model()
    optimizer = bt.AdamW(module.named_parameters(), lr=0.01)
    with pytest.raises(BadArgument, match="max_grad_norm=0, and the ds_config says 1"):
        deepspeed.initialize(model=module, optimizer=optimizer, config={MICRO: 4})
    engine = deepspeed.initialize(
        model=module, optimizer=optimizer, config={MICRO: 4, "gradient_clipping": 0.0})[0]
    assert engine.optimizer is optimizer


def test_training_data_becomes_a_loader_of_this_trainers_part(fake):
    data = torch.utils.data.TensorDataset(torch.arange(40.0).reshape(10, 4))
    _, _, loader, _ = deepspeed.initialize(
        model=model(), config=config(dataloader_drop_last=True), training_data=data)
    sizes = [len(rows) for (rows,) in loader]
    assert sizes == [4, 4] and isinstance(loader.sampler, torch.utils.data.DistributedSampler)


def test_no_sync_adds_up_and_refuses_a_step(fake):
    engine = deepspeed.initialize(model=model(), config=config())[0]
    with engine.no_sync():
        engine.backward(engine(batch(0)).square().mean() / 2)
        with pytest.raises(BadArgument, match="no_sync"):
            engine.step()
    engine.backward(engine(batch(1)).square().mean() / 2)
    engine.step()
    assert engine.global_steps == 1


def test_monitors_get_each_round(fake, tmp_path):
    csv = {"enabled": True, "output_path": str(tmp_path), "job_name": "j"}
    engine = deepspeed.initialize(
        model=model(), config=config(csv_monitor=csv, gradient_accumulation_steps=2))[0]
    train(engine, 4)
    with pytest.raises(BadArgument):  # but its rows are with the system
        engine.save_checkpoint(tmp_path, tag="a/b")
    assert (tmp_path / "j" / "Train_Samples_lr.csv").read_bytes() == (
        b"step,lr\r\n8,0.01\r\n16,0.01\r\n")
    train(engine, 2)
    engine.destroy()
    assert (tmp_path / "j" / "Train_Samples_lr.csv").read_bytes().endswith(b"24,0.01\r\n")


def test_a_missing_monitor_package_is_refused_at_the_start(fake, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(Unsupported, match="csv_monitor"):
        deepspeed.initialize(model=model(), config=config(wandb={"enabled": True}))


def test_names_that_are_not_there_say_what_to_use(fake):
    engine = deepspeed.initialize(model=model(), config=config())[0]
    for owner, name, says in (
        (engine, "store_checkpoint", "the name is save_checkpoint"),
        (engine, "nonsense", "has no 'nonsense'"),
        (deepspeed, "nonsense", "ballast.deepspeed has no 'nonsense'"),
    ):
        with pytest.raises(AttributeError, match=says):
            getattr(owner, name)
        assert not hasattr(owner, name)


def test_16_bit_weights_are_written(fake, tmp_path):
    engine = deepspeed.initialize(model=model(), config=config(bf16={"enabled": True}))[0]
    engine.module[0].bias.requires_grad_(False)
    assert engine.save_16bit_model(tmp_path / "out", "w.bin", exclude_frozen_parameters=True)
    state = torch.load(tmp_path / "out" / "w.bin", weights_only=True)
    assert "0.bias" not in state and state["0.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scheduler": {"type": "WarmupLR", "params": {"last_batch_iteration": 3}}},
         "scheduler.params.last_batch_iteration is not -1"),
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage: not yet: stage 3"),
        ({"optimizer": {"type": "Lamb", "params": {"eps_inside_sqrt": True}}}, "eps_inside_sqrt"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, "optimizer.params.lr"),
        ({"fp16": {"enabled": True, "loss_scale": 8}, "bf16": {"enabled": True}}, "16"),
        ({"gradient_cliping": 1.0}, "did you mean gradient_clipping"),
        ({"train_batch_size": 7}, "train_batch_size 7 is not"),
    ],
)
def test_what_the_service_lacks_is_refused_by_its_key(fake, change, says):
    with pytest.raises(Unsupported) as caught:
        deepspeed.initialize(model=model(), config=config(**change))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "params", "ours", "has"),
    [
        ("Adam", {"amsgrad": True}, bt.AdamW, {"amsgrad": True, "lr": 1e-3, "weight_decay": 0.0}),
        ("Adam", {"adam_w_mode": False, "weight_decay": 0.1}, bt.Adam, {"weight_decay": 0.1}),
        ("Adagrad", {"eps": 1e-6}, bt.Adagrad, {"eps": 1e-6, "lr": 1e-2}),
        ("Lion", {"lr": 1e-4, "betas": [0.8, 0.9]}, bt.Lion, {"lr": 1e-4, "betas": (0.8, 0.9)}),
        ("Lamb", {"max_coeff": 5.0, "bias_correction": False}, bt.LAMB,
         {"max_coeff": 5.0, "min_coeff": 0.01, "bias_correction": False, "weight_decay": 0.0}),
        ("SGD", {"momentum": 0.9, "nesterov": True}, bt.SGD, {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_each_type_of_optimizer_gets_its_params(fake, kind, params, ours, has):
    section = {"optimizer": {"type": kind, "params": params}}
    _, optimizer, _, _ = deepspeed.initialize(model=model(), config=config(**section))
    assert type(optimizer) is ours
    group = optimizer.param_groups[0]
    assert {key: tuple(v) if isinstance(v := group[key], list) else v for key in has} == has


def test_arguments_that_do_not_fit_are_named(fake, tmp_path):
    module = model()
    mpu = argparse.Namespace(get_model_parallel_world_size=lambda: 2)
    other = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(module.parameters(), lr=1.0), 1)
    for arguments, says in (
        ({"model": None, "config": config()}, "not a torch.nn.Module"),
        ({}, "no ds_config was given"),
        ({"config": config(), "config_params": config()}, "more than one ds_config"),
        ({"config": config(), "mpu": mpu}, "mpu.get_model_parallel_world_size"),
        ({"config": config(), "optimizer": 5}, "optimizer is a int"),
        ({"config": config(), "optimizer": torch.optim.Rprop(module.parameters())}, "Rprop"),
        ({"config": config(), "lr_scheduler": 5}, "lr_scheduler is a int"),
        ({"config": config(), "lr_scheduler": other}, "built on another optimizer"),
    ):
        with pytest.raises((BadArgument, Unsupported), match=says):
            deepspeed.initialize(**{"model": module, **arguments})


def test_the_configuration_may_come_from_the_command_line(fake, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config()) + " # as DeepSpeed reads it")
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", str(path)])
    engine = deepspeed.initialize(args=args, model=model())[0]
    train(engine, 1)
    assert engine.global_steps == 1


def test_activations_are_recomputed_by_torch():
    x = torch.ones(3, requires_grad=True)
    assert deepspeed.checkpointing.is_configured()
    deepspeed.checkpointing.checkpoint(lambda v: v * v, x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_step_was_applied_only_where_a_round_ended(fake):
    engine, *_ = deepspeed.initialize(
        model=model(), config=config(gradient_accumulation_steps=2))
    said = []
    for i in range(4):
        train(engine, 1)
        said.append(engine.was_step_applied())
    assert said == [False, True, False, True]


@pytest.mark.parametrize("name", ["adamw", "ADAMW", "aDam", "lamb", "LION", "sgd"])
def test_the_optimizers_name_is_read_in_any_case(fake, name):
    params = {"lr": 0.01, **({"momentum": 0.9} if name == "sgd" else {})}
    _, optimizer, *_ = deepspeed.initialize(
        model=model(), config=config(optimizer={"type": name, "params": params}))
    assert type(optimizer).__name__.lower() in (name.lower(), "adamw")


def test_a_load_begins_a_round_with_all_its_micro_batches():
    boundary = Boundary(micro=1, accumulation=3, world=1, managed=True)
    boundary.restore(micro_steps=4, global_steps=1, global_samples=3, skipped_steps=0)
    ends = []
    for _ in range(3):
        ends.append(boundary.is_boundary())
        boundary.step_ended()
    assert ends == [False, False, True]


def test_switches_that_are_left_to_the_script_are_named(fake, capfd):
    deepspeed.initialize(
        model=model(), config=config(torch_autocast={"enabled": True, "dtype": "bfloat16"}))
    assert "the ds_config switches on torch_autocast.enabled, which" in capfd.readouterr().err
    deepspeed.initialize(model=model(), config=config())
    assert "switches on" not in capfd.readouterr().err


def test_arguments_of_a_script_do_not_collide_with_ours(fake):
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    parser.add_argument("--local_rank", type=int)
    assert parser.parse_args(["--deepspeed", "--local_rank", "2"]).local_rank == 2


def test_fp32_values_of_one_parameter_come_from_the_servers(fake):
    engine, optimizer, *_ = deepspeed.initialize(model=model().bfloat16(), config=config())
    train(engine, 2, torch.bfloat16)
    state = optimizer.export_state()["state"]
    for i, p in enumerate(engine.module.parameters()):
        assert torch.equal(deepspeed.utils.safe_get_full_fp32_param(p), state[i]["master"])
        moment = deepspeed.utils.safe_get_full_optimizer_state(p, "exp_avg")
        assert torch.equal(moment, state[i]["exp_avg"])
    with pytest.raises(BadArgument, match="there is no state 'exp'; there are: master, exp_avg"):
        deepspeed.utils.safe_get_full_optimizer_state(p, "exp")
    with pytest.raises(BadArgument, match="is in no engine that has stepped"):
        deepspeed.utils.safe_get_full_fp32_param(torch.nn.Parameter(torch.zeros(1)))
