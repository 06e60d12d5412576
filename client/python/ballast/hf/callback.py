"""ballast.hf.Callback: the work that Trainer does not do by itself for an optimizer in the service.

Comes from: user code. Goes to: transformers' TrainerCallback, ballast.hf.resuming.
Thread safety: used by Trainer's thread.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ballast.errors import BadArgument, warn
from ballast.hf import clipping, norms, scaling, schedule
from ballast._launcher_conflicts import refuse_deepspeed
from ballast.hf.resuming import ResumingOptimizer, resuming
from ballast.pauses import say
from ballast.torch.service_optimizer import ServiceOptimizer


def _warn_of_kind(args: Any, optimizer: ResumingOptimizer) -> None:
    """Another optimizer in the training arguments than AdamW, Trainer's default, is lost."""
    asked = str(getattr(args.optim, "value", args.optim))
    if "adamw" not in asked:
        warn(
            f"optim={asked} of the training arguments counts for nothing: the optimizer is "
            f"{optimizer._kind.name}, as the script or optimizer.type of the ds_config says (AdamW "
            "by default)"
        )


def _refuse_other_parameters(model: Any, optimizer: ResumingOptimizer) -> None:
    """Each step would change nothing: replaced or frozen parameters get no gradient."""
    named = dict(model.named_parameters())
    trained = {id(p) for p in named.values() if p.requires_grad}
    ours = [(g, i, p) for g, group in enumerate(optimizer.param_groups)
            for i, p in enumerate(group["params"])]  # fmt: skip
    for g, i, p in ours:
        name = optimizer._naming.of(optimizer.param_groups[g], g, i)[0]
        if named.get(name, p) is not p:
            raise BadArgument(
                f"parameter {name!r} of the model is another tensor than that of the optimizer, "
                "which was made before it was replaced (as PEFT does when it loads an adapter): no "
                "step would change it. Set trainer.optimizer = None before train(), or resume in "
                "a new process"
            )
    if not any(id(p) in trained for _, _, p in ours):
        raise BadArgument(
            "no parameter of the optimizer is one that the model trains; make the optimizer of "
            "trainer.model, after the trainer, which may freeze or wrap the model it is given"
        )


class Callback(TrainerCallback):
    """For Trainer(..., callbacks=[ballast.hf.Callback()]).

    For an optimizer of ballast.hf.optimizer(), or of ballast.torch in optimizers=.

    - With each checkpoint it keeps a snapshot on the servers, which resume_from_checkpoint needs.
    - It multiplies the loss by the service's loss scale where backward() begins.
    - While the service clips, Trainer's own clipping is off: max_grad_norm reads 0 meanwhile.
    - With a scheduler section of the ds_config, Trainer's schedule shows what the service decides.
    - A step that the service skipped leaves the schedule where it is. skipped_steps counts them.
    - At the end of train() the optimizer leaves its job; another train() takes its seat again.
    """

    def __init__(self, keep: int | None = None) -> None:
        """keep: how many snapshots of the job stay. 0: all. None: save_total_limit and one more,
        or all without a limit, or when the best model is to be loaded at the end."""
        self.skipped_steps = 0
        self._keep = keep
        self._kept: tuple[int, int] | None = None  # job and round of the last snapshot
        self._warned = False

    def on_init_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        refuse_deepspeed(args)
        if isinstance(given := more.get("optimizer"), ServiceOptimizer):
            _inner(given)  # A resume loads into it before train() begins.

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Attaches. BadArgument for another optimizer, or a job further along than Trainer."""
        optimizer = _inner(more["optimizer"])
        _refuse_other_parameters(more["model"], optimizer)
        self.skipped_steps = 0
        optimizer.managed = True
        if optimizer._membership.config.lr_schedule is not None:
            schedule.take_over(more["lr_scheduler"], optimizer.param_groups)
        if optimizer.closed:
            optimizer.reopen()
        elif optimizer.attach() and optimizer.opt_step > 0 and state.global_step == 0:
            raise BadArgument(
                f"job {optimizer.job!r} has taken {optimizer.opt_step} steps, and Trainer begins "
                "with its first one. Call train(resume_from_checkpoint=True), and start all "
                "trainers together, without BALLAST_RESUME or with another job name"
            )
        self._clip_once(args, optimizer)
        _warn_of_kind(args, optimizer)
        scaling.begin(optimizer)
        if optimizer._membership.config.loss_scale != 1.0:
            norms.spare_gradients(optimizer)

    def _clip_once(self, args: Any, optimizer: ResumingOptimizer) -> None:
        service, written = optimizer._membership.config.max_grad_norm, clipping.written(args)
        if service <= 0:
            if written > 0 and optimizer._membership.config.loss_scale != 1.0:
                raise BadArgument(
                    f"max_grad_norm={written:g} of the training arguments would clip gradients "
                    "that are multiplied by the loss scale, and the optimizer has none "
                    "(gradient_clipping of the ds_config is 0); write the same number in both"
                )
            return
        if written not in (0.0, service):
            warn(
                f"gradients would be clipped twice: max_grad_norm={written:g} of the training "
                f"arguments, and {service:g} of the optimizer (gradient_clipping of the ds_config, "
                "1.0 if it has none). The optimizer's counts; write the same number in both"
            )
        clipping.switch_off(args)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Tells Accelerate's wrapper of skipped rounds: Trainer then leaves the schedule alone."""
        wrapper = more["optimizer"]
        skipped = _inner(wrapper).step_was_skipped
        self.skipped_steps += skipped
        if hasattr(wrapper, "_is_overflow"):
            wrapper._is_overflow = skipped

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Before Trainer writes a checkpoint, so that every existing folder has its snapshot."""
        if control.should_save:
            self._snapshot(args, more["optimizer"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if control.should_save:
            self._snapshot(args, more["optimizer"])

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """For checkpoints of which only an evaluation decides."""
        self._snapshot(args, more["optimizer"])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self.skipped_steps and logs is not None:
            logs["skipped_steps"] = self.skipped_steps
            if state.log_history:
                state.log_history[-1]["skipped_steps"] = self.skipped_steps

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        optimizer = _inner(more["optimizer"])
        clipping.switch_on(args)
        norms.undo(optimizer)
        scaling.end(optimizer)
        if self.skipped_steps:
            say(optimizer.rank, f"{self.skipped_steps} of {state.global_step} steps were skipped "
                "because a gradient was not finite")  # fmt: skip
        optimizer.close()

    def _snapshot(self, args: Any, wrapper: Any) -> None:
        optimizer = _inner(wrapper)
        moment = (optimizer.job_id, optimizer.round)
        if args.save_only_model or optimizer.rank != 0 or moment == self._kept:
            return
        if optimizer.durability == "none":
            if not self._warned:
                warn("checkpoints of a job of durability none have no optimizer state")
            self._warned = True
            return
        optimizer.keep_round(self._limit(args))
        self._kept = moment

    def _limit(self, args: Any) -> int:
        if self._keep is not None:
            return self._keep
        limit = args.save_total_limit
        # One more: Trainer removes the oldest folder when the new one is complete.
        return limit + 1 if limit and not args.load_best_model_at_end else 0


def _inner(optimizer: Any) -> ResumingOptimizer:
    """The Ballast optimizer in Accelerate's wrapper. One of ballast.torch learns to go back."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if not isinstance(inner, ServiceOptimizer):
        raise BadArgument(
            f"ballast.hf.Callback() is for an optimizer in the service, and Trainer has a "
            f"{type(inner).__name__}; pass optimizer_cls_and_kwargs=ballast.hf.optimizer(...), or "
            "set trainer.optimizer_cls_and_kwargs before train() where a trainer takes none"
        )
    if not isinstance(inner, ResumingOptimizer):
        inner.__class__ = resuming(type(inner))
    return inner
