"""ballast.hf.optimizer(): groups, names, and refusals, without a server."""

from __future__ import annotations

import importlib
import json

import ballast.hf
import ballast.torch as bt
import pytest
import torch
import transformers
from ballast.errors import BadArgument, Unsupported
from ballast.hf import clipping
from ballast.hf.factory import _groups
from hf_trainer import tiny


def made(optimizer, module):
    factory, kwargs = optimizer
    assert not isinstance(factory, type) and kwargs == {}
    return factory()(module, **kwargs)


class Norms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.Linear(2, 2)
        self.q_norm = torch.nn.Linear(2, 2)
        self.normal = torch.nn.Linear(2, 2)
        self.ln = torch.nn.LayerNorm(2)
        self.RMSNorm = torch.nn.Linear(2, 2)
        self.scale = torch.nn.Parameter(torch.ones(2))


@pytest.mark.parametrize("module", [tiny.model, Norms])
def test_the_groups_are_those_of_trainer_with_names(module):
    module = module()
    wanted = set(transformers.Trainer.get_decay_parameter_names(None, module))
    named = dict(module.named_parameters())
    decayed, others = (dict(group["params"]) for group in _groups(module, 0.1))
    assert set(decayed) == wanted & set(named) and set(others) == set(named) - wanted
    assert all(named[name] is p for name, p in (decayed | others).items())


def test_auto_and_the_arguments_give_the_optimizer(fake, tmp_path):
    args = tiny.arguments(tmp_path, adam_beta2=0.9, adam_epsilon=1e-6, max_grad_norm=0.25)
    page = tmp_path / "ds_config.json"
    page.write_text(json.dumps({
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                                  "weight_decay": "auto"}},
        "bf16": {"enabled": "auto"}, "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}))  # fmt: skip
    for config in (None, str(page)):
        opt = made(ballast.hf.optimizer(config, args), tiny.model())
        assert isinstance(opt, bt.AdamW)
        first, second = opt.param_groups
        assert (first["lr"], first["betas"], first["eps"]) == (1e-2, (0.9, 0.9), 1e-6)
        assert (first["weight_decay"], second["weight_decay"]) == (0.1, 0.0)
        assert opt._membership.config.max_grad_norm == 0.25
    clipping.switch_off(args)  # as an exception in train() leaves them
    opt = made(ballast.hf.optimizer(None, args), tiny.model())
    assert opt._membership.config.max_grad_norm == 0.25 and args.max_grad_norm == 0.0
    sgd = {"optimizer": {"type": "SGD", "params": {"lr": "auto", "momentum": 0.9}}}
    opt = made(ballast.hf.optimizer(sgd, args, durability="process"), tiny.model())
    assert isinstance(opt, bt.SGD) and opt.durability == "process"


@pytest.mark.parametrize(("config", "more", "named"), [
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1.0}}}, {},
     "warmup_max_lr is 1.0, and learning_rate is 0.01"),
    ({"gradient_accumulation_steps": 3}, {}, "gradient_accumulation_steps is 3"),
    (None, {"fp16": True}, "Accelerate would scale the loss.*--mixed-precision fp16"),
    ({"fp16": {"enabled": True}}, {"bf16": True}, "bf16"),
    ({"optimizer": {"type": "Nonsense", "params": {}}}, {}, "Nonsense"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(fake, tmp_path, config, more, named):
    args = tiny.arguments(tmp_path)
    for key, value in more.items():
        setattr(args, key, value)
    with pytest.raises((BadArgument, Unsupported), match=named):
        made(ballast.hf.optimizer(config, args), tiny.model())


def test_ballast_run_names_the_configuration_and_its_precision(fake, tmp_path, monkeypatch):
    page = tmp_path / "ds_config.json"
    page.write_text(json.dumps({
        "optimizer": {"type": "SGD", "params": {"lr": "auto"}},
        "bf16": {"enabled": "auto"}}))  # fmt: skip
    monkeypatch.setenv("BALLAST_DS_CONFIG", str(page))
    for name in ("BALLAST_MIXED_PRECISION", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.setenv(name, "bf16")
    args = tiny.arguments(tmp_path)
    assert (args.bf16, args.mixed_precision) == (False, "bf16")
    module = tiny.model()
    opt = made(ballast.hf.optimizer(args=args), module)
    assert isinstance(opt, bt.SGD) and next(module.parameters()).dtype == torch.bfloat16
    with pytest.raises(BadArgument, match="ballast.hf.optimizer.. got a dict"):
        ballast.hf.optimizer({"optimizer": {"type": "Adam"}}, args)
    monkeypatch.delenv("BALLAST_DS_CONFIG")
    module = tiny.model()  # autocast alone: the model stays unchanged
    made(ballast.hf.optimizer(args=args), module)
    assert next(module.parameters()).dtype == torch.float32
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")  # of accelerate launch
    with pytest.raises(Unsupported, match="Accelerate would scale.*--mixed-precision fp16"):
        made(ballast.hf.optimizer(args=tiny.arguments(tmp_path)), tiny.model())
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # of ballast-run --mixed-precision fp16
    monkeypatch.setenv("BALLAST_MIXED_PRECISION", "fp16")
    monkeypatch.setenv("BALLAST_DS_CONFIG", str(page))
    with pytest.raises(BadArgument, match="bf16.enabled"):
        page.write_text(json.dumps({"bf16": {"enabled": True}}))
        ballast.hf.optimizer(args=args)
    page.write_text(json.dumps({"optimizer": {"type": "SGD", "params": {"lr": "auto"}}}))
    module = tiny.model()
    opt = made(ballast.hf.optimizer(args=tiny.arguments(tmp_path)), module)
    assert next(module.parameters()).dtype == torch.float16
    assert opt._membership.config.loss_scale.initial_scale_power == 16
    monkeypatch.delenv("BALLAST_DS_CONFIG")
    module = tiny.model()
    opt = made(ballast.hf.optimizer(args=tiny.arguments(tmp_path)), module)
    assert isinstance(opt, bt.AdamW) and next(module.parameters()).dtype == torch.float16


@pytest.mark.parametrize("name", ["model", "params"])
def test_a_model_among_the_arguments_for_trainer_says_what_to_pass(fake, tmp_path, name):
    """Trainer passes it as the parameters."""
    module = tiny.model()
    trainer = tiny.trainer(module, tiny.arguments(tmp_path), (bt.AdamW, {name: module}))
    with pytest.raises(TypeError, match="params is a GPT2LMHeadModel.*=ballast.hf.optimizer"):
        trainer.create_optimizer()


def test_auto_without_arguments_says_so(fake):
    with pytest.raises((BadArgument, Unsupported), match="auto"):
        made(ballast.hf.optimizer({"train_micro_batch_size_per_gpu": 1}), tiny.model())
    with pytest.raises(BadArgument, match="needs a ds_config or args="):
        ballast.hf.optimizer()


def test_deepspeeds_own_path_is_refused_with_what_to_start(fake, tmp_path, monkeypatch):
    args = tiny.arguments(tmp_path)
    args.deepspeed = "ds_config.json"
    with pytest.raises(Unsupported, match="deepspeed=.*ballast-run"):
        ballast.hf.optimizer(args=args)
    args = tiny.arguments(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(Unsupported, match="ACCELERATE_USE_DEEPSPEED is set.*ballast-run"):
        ballast.hf.optimizer({})
    with pytest.raises(Unsupported, match="ACCELERATE_USE_DEEPSPEED is set.*ballast-run"):
        ballast.hf.Callback().on_init_end(args, None, None)


def test_the_variable_is_warned_of_before_transformers_fails_at_it(monkeypatch):
    # TrainingArguments raises for it that DeepSpeed is missing, before anything of ours is called.
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.warns(UserWarning, match="ACCELERATE_USE_DEEPSPEED is set.*ballast-run"):
        importlib.reload(ballast.hf)


def test_the_callback_names_an_optimizer_that_is_not_ours(tmp_path):
    args = tiny.arguments(tmp_path)
    run = tiny.trainer(tiny.model(), args, tiny.fused(args), [ballast.hf.Callback()])
    with pytest.raises(BadArgument, match="Trainer has a AdamW; pass optimizer_cls.*before train"):
        run.train()


def test_the_module_says_what_it_has():
    with pytest.raises(AttributeError, match="it has Callback, optimizer, resolve_auto"):
        ballast.hf.nonsense  # noqa: B018
