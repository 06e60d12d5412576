"""A tiny GPT-2 with random weights, its data, and Trainers over it.

Comes from: the tests in this folder, and scripts that they start. Element counts are multiples of
8: there torch's fused AdamW is an exact oracle.
"""

from __future__ import annotations

import os
import sys

import torch
import transformers

SAMPLES = 64


def model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).to(dtype)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        ids = torch.randint(64, (12,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


def arguments(folder, of=transformers.TrainingArguments, **more):
    given = {
        "output_dir": str(folder), "use_cpu": True, "report_to": [], "disable_tqdm": True,
        "per_device_train_batch_size": 4, "max_steps": 6, "learning_rate": 1e-2,
        "weight_decay": 0.1, "max_grad_norm": 0.0, "logging_steps": 1, "save_strategy": "no",
        "seed": 7, "lr_scheduler_type": "linear", "warmup_steps": 2,
        "dataloader_pin_memory": False,
    }  # fmt: skip
    return of(**{**given, **more})


def trainer(module, args, optimizer, callbacks=(), **more):
    return transformers.Trainer(
        module, args, train_dataset=Data(), optimizer_cls_and_kwargs=optimizer,
        callbacks=list(callbacks), **more,
    )  # fmt: skip


def fused(args):
    """torch's AdamW with the values that ballast.hf.optimizer() takes from the arguments."""
    return torch.optim.AdamW, {
        "lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon, "fused": True,
    }  # fmt: skip


class StopAt(transformers.TrainerCallback):
    """Ends the process of a run after some steps, as if it was killed, once its folder exists."""

    def __init__(self, steps):
        self._steps = steps

    def on_save(self, args, state, control, **_):
        if state.global_step == self._steps:
            sys.stdout.flush()
            os._exit(3)
