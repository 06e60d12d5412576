"""GPT-2 in Hugging Face's Trainer. The tests change two arguments, and import the names in them."""

import torch
import transformers
from e2e.gpt2 import net, run


class Watch(transformers.TrainerCallback):
    """Says what Trainer has done: after each step, and after the checkpoint that it writes."""

    def __init__(self, log):
        self._log = log

    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in logs:
            self._log.loss(logs["loss"])
            if not control.should_save:
                self._ended(logs, more)
            self._logs = logs

    def on_save(self, args, state, control, **more):
        self._ended(self._logs, more)

    def _ended(self, logs, more):
        wrapper, scheduler = more["optimizer"], more["lr_scheduler"].state_dict()
        self._log.round_ended(
            rate=logs["learning_rate"],
            position=scheduler.get("schedule_index", scheduler.get("last_epoch")),
            applied=not wrapper.step_was_skipped,
            scale=getattr(wrapper.optimizer, "loss_scale", 1.0),
        )


def arguments(case):
    return transformers.TrainingArguments(
        case.folder or ".", num_train_epochs=case.epochs, per_device_train_batch_size=net.MICRO,
        gradient_accumulation_steps=case.accumulation, learning_rate=net.LR,
        weight_decay=net.DECAY, max_grad_norm=case.clip, lr_scheduler_type="constant",
        warmup_steps=net.WARMUP if case.schedule else 0,
        bf16=case.dtype == "bf16", train_sampling_strategy="sequential", logging_steps=1,
        save_strategy="steps" if case.saves else "no", save_steps=case.saves or 500, use_cpu=True,
        report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip


def train(case):
    model, args, log = net.model(case), arguments(case), run.Log(case)
    config = net.ds_config(case)
    watch = Watch(log)
    trainer = transformers.Trainer(
        model,
        args,
        train_dataset=net.Data(case, args.world_size),
        optimizer_cls_and_kwargs=(torch.optim.AdamW, {"lr": net.LR, "fused": True}),
        callbacks=[watch],
    )
    trainer.train(resume_from_checkpoint=case.resume)
    log.ended(model)
    return log
