"""fp16 and a scheduler section under Hugging Face's Trainer: the service scales and schedules."""

from __future__ import annotations

import accelerate
import ballast.hf
import pytest
import torch
import transformers
from ballast.errors import BadArgument
from ballast.hf import scaling
from hf_trainer import tiny
from hf_trainer.test_trainer import same, saving
from real_training import fresh_job

pytestmark = pytest.mark.slow

ADAMW = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.1}}
WARMUP = {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": "auto", "warmup_num_steps": "auto",
               "warmup_type": "linear"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def job(one_server, monkeypatch):
    monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))


def fp16(power, **more):
    return {"optimizer": ADAMW, "fp16": {"enabled": True, "initial_scale_power": power, **more}}


def run(folder, config, kind=None, args=None, **more):
    args = args or tiny.arguments(folder, **{"warmup_steps": 4, **more})
    callback = ballast.hf.Callback()
    trainer = tiny.trainer(
        tiny.model(), args, ballast.hf.optimizer(config, args), [callback])
    if kind is not None:
        trainer.__class__ = kind
    trainer.train()
    return trainer, callback


class ScalesItself(transformers.Trainer):
    """Multiplies the loss in the script, as a loop over bt.AdamW does."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        scaling.end(self.optimizer.optimizer)
        model.train()
        loss = self.compute_loss(
            model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
        self.optimizer.optimizer.scale(loss).backward()
        return loss.detach()


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_fp16_has_the_bits_of_a_loop_that_scales_its_loss(tmp_path, monkeypatch, clip):
    mine, callback = run(tmp_path, fp16(8), max_grad_norm=clip)
    monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))
    other, _ = run(tmp_path, fp16(8), ScalesItself, max_grad_norm=clip)
    assert next(mine.model.parameters()).dtype == torch.float16
    assert callback.skipped_steps == 0 and mine.optimizer.optimizer.opt_step == 6
    same(mine.model, other.model)
    losses = [[log["loss"] for log in r.state.log_history if "loss" in log] for r in (mine, other)]
    assert losses[0] == losses[1] and max(losses[0]) < 5  # the loss itself, not a multiple
    before = tiny.model(dtype=torch.float16).parameters()
    moved = [not torch.equal(a, b) for a, b in zip(mine.model.parameters(), before)]
    assert any(moved)


def test_a_norm_that_fp16_cannot_hold_is_measured_and_skips_no_step(tmp_path):
    real = accelerate.Accelerator.clip_grad_norm_
    trainer, callback = run(tmp_path, fp16(16), max_grad_norm=0.0)
    norms = [log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log]
    assert torch.finfo(torch.float16).max < max(norms) < float("inf")
    assert callback.skipped_steps == 0 and trainer.optimizer.optimizer.opt_step == 6
    # Each gradient is as it was: the service's norm, which it divides by the scale, is the same.
    assert norms[-1] == pytest.approx(2.0**16 * trainer.optimizer.optimizer.grad_norm, rel=1e-5)
    assert accelerate.Accelerator.clip_grad_norm_ is real


def test_steps_that_overflow_are_skipped_and_reach_accelerate(tmp_path):
    config = {**fp16(32, hysteresis=1), "scheduler": WARMUP}
    seen = []

    class Watch(ballast.hf.Callback):
        def on_optimizer_step(self, args, state, control, **more):
            super().on_optimizer_step(args, state, control, **more)
            wrapper = more["optimizer"]
            assert wrapper.step_was_skipped == wrapper.optimizer.step_was_skipped
            seen.append(wrapper.step_was_skipped)

    args = tiny.arguments(tmp_path, max_steps=30)
    watch = Watch()
    trainer = tiny.trainer(tiny.model(), args, ballast.hf.optimizer(config, args), [watch])
    trainer.train()
    optimizer = trainer.optimizer.optimizer
    assert seen[0] and not seen[-1]
    assert watch.skipped_steps == sum(seen) == 30 - optimizer.opt_step
    # The schedule does not move in a skipped step.
    assert trainer.lr_scheduler.state_dict()["schedule_index"] == optimizer.opt_step - 1
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_a_scheduler_section_decides_the_rates_that_trainer_logs(tmp_path):
    trainer, _ = run(tmp_path, {"optimizer": ADAMW, "scheduler": WARMUP})
    rates = [log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log]
    assert rates == [0.0, *(1e-2 * (i / 4) for i in range(5))]  # DeepSpeed's first one is the least
    assert trainer.lr_scheduler.get_last_lr() == [1e-2, 1e-2]
    assert "initial_lr" not in trainer.optimizer.param_groups[0]


def test_a_resumed_run_continues_scale_and_schedule(tmp_path, monkeypatch):
    config = {**fp16(10, loss_scale_window=2), "scheduler": WARMUP}
    whole, _ = run(None, config, args=saving(tmp_path, max_steps=6, warmup_steps=4))
    monkeypatch.setenv("BALLAST_JOB", fresh_job("hf"))
    args = saving(tmp_path, max_steps=6, warmup_steps=4)
    again = tiny.trainer(
        tiny.model(seed=5), args, ballast.hf.optimizer(config, args), [ballast.hf.Callback()])
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    same(again.model, whole.model)
    scales = [r.optimizer.optimizer.policy["loss_scale"] for r in (whole, again)]
    assert scales[0] == scales[1] > 2.0**10
    assert again.lr_scheduler.state_dict() == whole.lr_scheduler.state_dict()


def test_a_second_training_continues_the_schedule(tmp_path):
    trainer, _ = run(tmp_path, {"optimizer": ADAMW, "scheduler": WARMUP}, max_steps=2)
    trainer.args.max_steps = 2
    trainer.train()
    assert trainer.lr_scheduler.state_dict()["schedule_index"] == 3


@pytest.mark.parametrize("config", [fp16(8), {"optimizer": ADAMW, "scheduler": WARMUP}])
def test_without_the_callback_the_first_step_says_what_is_missing(tmp_path, config):
    args = tiny.arguments(tmp_path)
    trainer = tiny.trainer(tiny.model(), args, ballast.hf.optimizer(config, args))
    with pytest.raises(BadArgument, match=r"need Trainer\(..., callbacks="):
        trainer.train()


def test_passes_without_a_backward_count_for_nothing(tmp_path):
    """Evaluation between steps, and accumulation: each step has gradients of its own passes."""
    run(tmp_path, fp16(8), gradient_accumulation_steps=2, max_steps=2)


def test_a_clip_of_trainer_alone_is_refused_with_a_scale(tmp_path):
    args = tiny.arguments(tmp_path, max_grad_norm=0.5)
    config = {**fp16(8), "gradient_clipping": 0.0, "train_micro_batch_size_per_gpu": 4,
              "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}  # fmt: skip
    trainer = tiny.trainer(
        tiny.model(), args, ballast.hf.optimizer(config), [ballast.hf.Callback()])
    with pytest.raises(BadArgument, match="max_grad_norm=0.5 .* multiplied by the loss scale"):
        trainer.train()
