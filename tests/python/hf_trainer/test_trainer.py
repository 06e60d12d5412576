"""Hugging Face's Trainer over a real server: the bits of torch, resume, clipping, skips."""

from __future__ import annotations

import ballast.hf
import pytest
import torch
from hf_trainer import tiny
from real_training import fresh_job

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def job(one_server, monkeypatch):
    monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))


def same(module, other):
    for (name, a), b in zip(module.state_dict().items(), other.state_dict().values()):
        assert torch.equal(a, b), name


def torch_run(tmp_path, **more):
    module = tiny.model()
    args = tiny.arguments(tmp_path / "torch", **more)
    run = tiny.trainer(module, args, tiny.fused(args))
    run.train()
    return run


@pytest.mark.parametrize("more", [
    {}, {"bf16": True}, {"gradient_accumulation_steps": 3}], ids=["fp32", "bf16", "accumulation"])
def test_a_run_has_the_bits_of_torch(tmp_path, more):
    module = tiny.model()
    args = tiny.arguments(tmp_path, **more)
    callback = ballast.hf.Callback()
    run = tiny.trainer(module, args, ballast.hf.optimizer(args=args), [callback])
    run.train()
    theirs = torch_run(tmp_path, **more)
    same(module, theirs.model)
    losses = [[log["loss"] for log in r.state.log_history if "loss" in log] for r in (run, theirs)]
    assert losses[0] == losses[1] and len(losses[0]) == 6
    assert callback.skipped_steps == 0


def saving(tmp_path, **more):
    return tiny.arguments(tmp_path, **{"save_strategy": "steps", "save_steps": 2, **more})


def test_a_resumed_run_has_the_bits_of_one_that_was_not_cut(tmp_path, monkeypatch):
    args = saving(tmp_path, max_steps=6)
    run = tiny.trainer(
        tiny.model(), args, ballast.hf.optimizer(args=args), [ballast.hf.Callback()])  # fmt: skip
    run.train()
    job = run.optimizer.optimizer.job
    # The job is at round 6; the resumed folder is of round 4. A fresh process has another
    # job name and other weights.
    monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))
    args = saving(tmp_path, max_steps=6)
    again = tiny.trainer(
        tiny.model(seed=5), args, ballast.hf.optimizer(args=args), [ballast.hf.Callback()])
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    optimizer = again.optimizer.optimizer
    assert optimizer.opt_step == 6 and optimizer.job not in (job, "")
    same(again.model, torch_run(tmp_path).model)


def test_one_trainer_trains_resumes_and_trains_on(tmp_path):
    """In one process, with the optimizer attached: back to a checkpoint, then further."""
    args = saving(tmp_path, max_steps=6)
    run = tiny.trainer(
        tiny.model(), args, ballast.hf.optimizer(args=args), [ballast.hf.Callback()])
    run.train()
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    same(run.model, torch_run(tmp_path).model)
    before = run.optimizer.optimizer.round
    run.train()  # the same job, from its weights
    assert run.optimizer.optimizer.round == before + 6
    with torch.no_grad():
        run.model.transformer.wte.weight.zero_()  # as the best model's weights are put in
    run.train()
    assert run.optimizer.optimizer.round == before + 13  # one round uploads


def test_16_bit_parameters_resume_from_the_masters(tmp_path, monkeypatch):
    """The folder has roundings; the service has the values from before the rounding."""
    config = {"bf16": {"enabled": True}}
    results = []
    for resume in (None, str(tmp_path / "checkpoint-4")):
        args = saving(tmp_path, bf16=True)
        run = tiny.trainer(tiny.model(), args, ballast.hf.optimizer(config, args),
                           [ballast.hf.Callback()])  # fmt: skip
        run.train(resume_from_checkpoint=resume)
        assert run.model.dtype == torch.bfloat16
        results.append(run.model)
        monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))
    same(*results)


def test_the_service_clips_once_and_exactly(tmp_path, monkeypatch):
    clips = []
    real = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_",
                        lambda p, norm, *a, **k: clips.append(norm) or real(p, norm, *a, **k))
    args = tiny.arguments(tmp_path, max_grad_norm=0.5)
    run = tiny.trainer(
        tiny.model(), args, ballast.hf.optimizer(args=args), [ballast.hf.Callback()])
    run.train()
    optimizer = run.optimizer.optimizer
    assert set(clips) == {float("inf")}  # Trainer measures the norm for its log only.
    assert optimizer.last_report["clip_coef"] < 1.0
    assert args.max_grad_norm == 0.5  # as before
    logged = [log["grad_norm"] for log in run.state.log_history if "grad_norm" in log]
    assert logged[-1] == pytest.approx(optimizer.grad_norm, rel=1e-5)
    theirs = torch_run(tmp_path, max_grad_norm=0.5)
    assert 0.5 in clips
    for a, b in zip(run.model.parameters(), theirs.model.parameters()):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_two_clips_are_warned_of_and_the_optimizers_counts(tmp_path):
    args = tiny.arguments(tmp_path, max_grad_norm=0.5)
    config = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
              "train_micro_batch_size_per_gpu": 4}  # fmt: skip
    run = tiny.trainer(
        tiny.model(), args, ballast.hf.optimizer(config), [ballast.hf.Callback()])
    with pytest.warns(UserWarning, match="clipped twice: max_grad_norm=0.5 .*, and 1 of the opt"):
        run.train()
    assert run.optimizer.optimizer._membership.config.max_grad_norm == 1.0


class BadStep(ballast.hf.Callback):
    """Makes a gradient of the second step infinite."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        if state.global_step == 1:
            model.transformer.wte.weight.grad[0] = float("inf")


def test_a_skipped_step_leaves_the_schedule(tmp_path):
    args = tiny.arguments(tmp_path, lr_scheduler_type="linear", warmup_steps=0)
    callback = BadStep()
    run = tiny.trainer(tiny.model(), args, ballast.hf.optimizer(args=args), [callback])
    run.train()
    assert callback.skipped_steps == 1
    assert run.lr_scheduler.last_epoch == 5  # of 6 steps
    assert run.optimizer.optimizer.opt_step == 5 and run.state.global_step == 6
    assert run.state.log_history[-2]["skipped_steps"] == 1


def test_a_checkpoint_without_its_snapshot_is_named(tmp_path, monkeypatch):
    args = saving(tmp_path)
    optimizer = ballast.hf.optimizer(args=args)
    run = tiny.trainer(tiny.model(), args, optimizer, [ballast.hf.Callback(keep=1)])
    run.train()
    monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))
    again = tiny.trainer(tiny.model(), args, optimizer, [ballast.hf.Callback()])
    with pytest.raises(ballast.BadArgument, match="after round 2, .* no snapshot .*-2'.*keep="):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_checkpoint_without_the_callback_is_named_when_written_and_when_resumed(
    tmp_path, monkeypatch
):
    args = saving(tmp_path)
    optimizer = ballast.hf.optimizer(args=args)
    with pytest.warns(UserWarning, match="written at round 2 without ballast.hf.Callback") as said:
        tiny.trainer(tiny.model(), args, optimizer).train()
    assert sum("without ballast.hf.Callback" in str(one.message) for one in said) == 1
    monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))
    again = tiny.trainer(tiny.model(), args, optimizer, [ballast.hf.Callback()])
    with pytest.raises(ballast.BadArgument, match="after round 2 was written without .*from_pret"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_job_that_is_further_than_trainer_is_refused(tmp_path, monkeypatch):
    args = tiny.arguments(tmp_path)
    optimizer = ballast.hf.optimizer(args=args)
    run = tiny.trainer(tiny.model(), args, optimizer, [ballast.hf.Callback()])
    run.train()
    monkeypatch.setenv("BALLAST_JOB", run.optimizer.optimizer.job)
    monkeypatch.setenv("BALLAST_RESUME", "auto")
    from ballast import job_name

    monkeypatch.setattr(job_name, "_names_given", {})
    again = tiny.trainer(tiny.model(), args, optimizer, [ballast.hf.Callback()])
    with pytest.raises(ballast.BadArgument, match="has taken 6 steps, and Trainer begins with"):
        again.train()


class OutOfMemory(ballast.hf.Callback):
    """Fails once in the second step, as too large a batch does."""

    failed = False

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 1 and not self.failed:
            self.failed = True
            raise RuntimeError("CUDA out of memory.")


@pytest.mark.parametrize("resume", [False, True])
def test_a_smaller_batch_is_found_in_the_same_job(tmp_path, monkeypatch, resume):
    args = saving(tmp_path, auto_find_batch_size=True, max_grad_norm=0.5, save_steps=1)
    optimizer = ballast.hf.optimizer(args=args)
    if resume:
        args.max_steps = 1
        tiny.trainer(tiny.model(), args, optimizer, [ballast.hf.Callback()]).train()
        args.max_steps = 6
        monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))
    callback = OutOfMemory()
    run = tiny.trainer(tiny.model(), args, optimizer, [callback])
    run.train(resume_from_checkpoint=resume or None)
    inner = run.optimizer.optimizer
    assert callback.failed and run.state.global_step == 6
    # Without a checkpoint Trainer begins its count again, and the model keeps its step.
    assert inner.opt_step == (6 if resume else 7)
    assert inner._membership.config.max_grad_norm == 0.5 and args.max_grad_norm == 0.5
