"""ballast.hf.optimizer(): what Trainer takes as optimizer_cls_and_kwargs.

Comes from: user code. Goes to: ballast.deepspeed's reading of a ds_config, ballast.hf.resuming.
Trainer of transformers 5 calls a factory once, and its result with the model; a class would get
parameter groups without names. Thread safety: as ballast.torch.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ballast import config as job_config
from ballast.deepspeed import building
from ballast.deepspeed.settings import Settings
from ballast.ds_config import launched
from ballast.ds_config.arguments import Arguments
from ballast.ds_config.source import Config, load
from ballast.errors import BadArgument, Unsupported, at_border
from ballast.hf import clipping, scaling
from ballast.hf.auto import resolve_auto
from ballast._launcher_conflicts import refuse_deepspeed
from ballast.hf.resuming import ResumingOptimizer, resuming

_Build = Callable[..., ResumingOptimizer]

_ADAMW = {
    "type": "AdamW",
    "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto"),
}
_BATCH = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# As Trainer.get_decay_parameter_names() of transformers 5.24 has them.
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
_REFUSED = {
    "data_types.grad_accum_dtype": "Trainer adds gradients up in the dtype of their parameter; "
    "delete it",
}


@at_border
def optimizer(
    config: Config | None = None, args: Any = None, **options: Any
) -> tuple[Callable[[], _Build], dict[str, Any]]:
    """For Trainer(..., optimizer_cls_and_kwargs=...): an optimizer whose state is in the service.

    Trainers without that argument (Seq2SeqTrainer, those of TRL) have it as an attribute, which is
    set before train().

    config: a ds_config (path, dict or base64), of which optimizer, precision and clipping count;
    by default the file of ballast-run --ds-config, whose --mixed-precision counts, too.
    Without one, or without its optimizer section, AdamW with the values of args. args: the
    TrainingArguments, which fill "auto"; needed where something is "auto" or config is None.
    options: those of the job, such as endpoints, job, durability; the environment has them, too.
    gradients is "auto": in DDP, in which Trainer puts the model, one trainer pushes for all.
    Weight decay is for the parameters that Trainer decays: no biases, no norms.
    max_grad_norm is that of the ds_config, else of args; the service clips the mean gradient by it.
    bf16.enabled of the ds_config casts the model; bf16=True in args alone leaves it fp32 and
    computes with autocast. fp16.enabled casts it, too, and the service scales the loss. A scheduler
    section is run by the service, in place of lr_scheduler_type. Trainer calls the factory, which
    raises BadArgument or Unsupported for settings that do not fit.
    """
    refuse_deepspeed(args)
    config = launched.chosen(config, "ballast.hf.optimizer()")
    if config is None and args is None:
        raise BadArgument("ballast.hf.optimizer() needs a ds_config or args=, TrainingArguments")
    document = _document(config, args)

    @at_border
    def build(model: torch.nn.Module) -> ResumingOptimizer:
        return _built(model, document, args, options)

    return lambda: build, {}


def _document(config: Config | None, args: Any) -> dict[str, Any]:
    values = dict(load(config).values) if config is not None else {}
    # Without a ds_config bf16 is autocast, and Accelerate has it; fp16 is always the service's.
    if config is not None or launched.precision() == "fp16":
        values = launched.precise(values)
    values.setdefault("optimizer", _ADAMW)
    if args is None:
        return values
    for key in _BATCH if "train_batch_size" not in values else ():
        values.setdefault(key, "auto")
    values.setdefault("gradient_clipping", "auto")
    return values


def _settings(document: dict[str, Any], args: Any, model: torch.nn.Module) -> Settings:
    world, _ = job_config.seat(os.environ)
    filled = document
    if args is not None:
        with clipping.undone(args):
            filled = resolve_auto(document, _arguments(document, args, model), model)
    settings = Settings(filled, world)
    for key, instead in _REFUSED.items():
        if settings[key] is not None:
            raise Unsupported(f"{key} {settings[key]!r} of the ds_config: {instead}")
    _refuse_other_precision(args, settings)
    return settings


def _refuse_other_precision(args: Any, settings: Settings) -> None:
    computes = getattr(args, "mixed_precision", "no")  # also the launcher's setting
    if getattr(args, "fp16", False) or computes == "fp16":
        raise Unsupported(
            "fp16 of the training arguments (or ACCELERATE_MIXED_PRECISION): Accelerate would "
            "scale the loss and skip steps on each trainer by itself. Leave it out, and write "
            '"fp16": {"enabled": true} into the ds_config, or start with '
            "`ballast-run --mixed-precision fp16`: then the service scales for all trainers"
        )
    if settings["fp16.enabled"] and (getattr(args, "bf16", False) or computes == "bf16"):
        raise BadArgument(
            "fp16.enabled of the ds_config is true, and the training arguments say bf16; leave one "
            "of the two out"
        )


def _arguments(document: dict[str, Any], args: Any, model: torch.nn.Module) -> Arguments:
    """The arguments as the ds_config is held against them: fp16 is the ds_config's alone."""
    arguments = Arguments.of(args, model)
    section = document.get("fp16")
    if isinstance(section, Mapping) and section.get("enabled") is True:
        return dataclasses.replace(arguments, fp16=True)
    return arguments


def _built(
    model: torch.nn.Module, document: dict[str, Any], args: Any, options: dict[str, Any]
) -> ResumingOptimizer:
    settings = _settings(document, args, model)
    model = building.cast(model, settings)
    of, arguments = building.configured(settings)
    decay = arguments.get("weight_decay", 0.0)
    groups = _groups(model, decay)
    job = {"gradients": "auto", **arguments, **options}
    made = resuming(of)(groups, model=model, **job)
    if arguments["loss_scale"] != 1.0 or arguments["lr_schedule"] is not None:
        scaling.need_callback(made)
    return made


def _groups(model: torch.nn.Module, decay: float) -> list[dict[str, Any]]:
    """The parameters to train, with names: those with weight decay, and the others."""
    exempt = {
        id(p)
        for module in model.modules()
        if isinstance(module, torch.nn.LayerNorm)
        for p in module.parameters()
    }
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decayed = [
        id(p) not in exempt and not _NO_DECAY.search(name.lower()) for name, p in named
    ]
    parts = ((decay, True), (0.0, False))
    groups = [
        {"params": [n for n, d in zip(named, decayed) if d is wanted], "weight_decay": value}
        for value, wanted in parts
    ]
    return [group for group in groups if group["params"]]
