"""Trainer's treatment of optimizers and folders from elsewhere than ballast.hf.optimizer()."""

from __future__ import annotations

import ballast.hf
import ballast.torch as bt
import pytest
import torch
import transformers
from ballast.errors import BadArgument
from ballast.hf.factory import _groups
from hf_trainer import tiny
from hf_trainer.test_trainer import same, saving
from real_training import fresh_job


@pytest.mark.slow
def test_a_folder_of_torch_continues_with_its_moments(tmp_path, one_server, monkeypatch):
    """Once: then in a trainer without optimizer_cls_and_kwargs, and with optimizers=."""
    args = saving(tmp_path / "torch")
    theirs = tiny.trainer(tiny.model(), args, tiny.fused(args))
    theirs.train()

    monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))
    args = saving(tmp_path / "ours", of=transformers.Seq2SeqTrainingArguments)
    ours = transformers.Seq2SeqTrainer(
        tiny.model(seed=5), args, train_dataset=tiny.Data(), callbacks=[ballast.hf.Callback()])
    ours.optimizer_cls_and_kwargs = ballast.hf.optimizer(args=args)
    ours.train(resume_from_checkpoint=str(tmp_path / "torch" / "checkpoint-2"))
    same(ours.model, theirs.model)
    assert ours.optimizer.optimizer.opt_step == 6
    first = ours.optimizer.optimizer.job

    # Trainer has put the folder's weights into the model, and the optimizer has left its job.
    ours.train(resume_from_checkpoint=str(tmp_path / "torch" / "checkpoint-4"))
    same(ours.model, theirs.model)
    assert ours.optimizer.optimizer.job == first

    monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))
    model = tiny.model(seed=6)
    args = saving(tmp_path / "ours")
    given = bt.AdamW(
        _groups(model, args.weight_decay), lr=args.learning_rate, model=model, gradients="auto")
    again = transformers.Trainer(
        model, args, train_dataset=tiny.Data(), optimizers=(given, None),
        callbacks=[ballast.hf.Callback()])  # fmt: skip
    again.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-4"))
    same(again.model, theirs.model)
    assert isinstance(given, bt.AdamW) and given.job not in (first, "") and given.opt_step == 6


def saved_by_torch(module, steps=3):
    """A state_dict() of torch's AdamW with Trainer's groups, one of them without parameters."""
    groups = [{"params": list(module.parameters())}, {"params": [], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    for _ in range(steps):
        module(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer.state_dict()


def test_the_services_schedule_continues_at_the_steps_of_the_folder(fake):
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 2, bias=False)
    saved = saved_by_torch(module)
    config = {"optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
              "train_micro_batch_size_per_gpu": 1,
              "scheduler": {"type": "WarmupLR", "params": {}}}  # fmt: skip
    optimizer = ballast.hf.optimizer(config)[0]()(module)
    optimizer.load_state_dict(saved)
    assert fake.last.policy()["schedule_index"] == 2 and optimizer.opt_step == 3
    got = optimizer.export_state()["state"][0]
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(got[key], saved["state"][0][key])
    assert torch.equal(got["master"], module.weight)


def test_state_of_another_kind_changes_nothing(fake):
    module = torch.nn.Linear(4, 2, bias=False)
    saved = saved_by_torch(module)
    config = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}},
              "train_micro_batch_size_per_gpu": 1}  # fmt: skip
    optimizer = ballast.hf.optimizer(config)[0]()(module)
    with pytest.raises(BadArgument, match="betas"):
        optimizer.load_state_dict(saved)
    assert not fake.attached and optimizer.param_groups[0]["lr"] == 0.1


def test_a_static_loss_scale_of_optimizers_is_applied(fake, tmp_path):
    """Without, the service divided by a scale that no gradient had."""
    args = tiny.arguments(tmp_path, max_steps=2)
    norms = []
    for scale in (1.0, 512.0):
        model = tiny.model()
        given = bt.SGD(model.named_parameters(), lr=0.1, loss_scale=scale, job=f"by-{scale:g}")
        transformers.Trainer(
            model, args, train_dataset=tiny.Data(), optimizers=(given, None),
            callbacks=[ballast.hf.Callback()]).train()  # fmt: skip
        norms.append(given.grad_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_parameters_that_no_step_would_change_are_refused(fake, tmp_path):
    """PEFT replaces them when it loads an adapter in 16 bits; TRL freezes those below one."""
    args = tiny.arguments(tmp_path, max_steps=1)
    run = tiny.trainer(
        tiny.model(), args, ballast.hf.optimizer(args=args), [ballast.hf.Callback()])
    run.train()
    last = run.model.transformer.ln_f
    last.weight = torch.nn.Parameter(last.weight.detach().clone())
    with pytest.raises(BadArgument, match="'transformer.ln_f.weight'.*trainer.optimizer = None"):
        run.train()
    model = tiny.model()
    given = bt.SGD(model.transformer.ln_f.named_parameters("transformer.ln_f"), lr=0.1)
    model.transformer.ln_f.requires_grad_(False)
    run = transformers.Trainer(model, args, train_dataset=tiny.Data(), optimizers=(given, None),
                               callbacks=[ballast.hf.Callback()])  # fmt: skip
    with pytest.raises(BadArgument, match="no parameter of the optimizer is one that the model"):
        run.train()
