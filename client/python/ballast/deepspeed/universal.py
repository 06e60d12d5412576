"""load_checkpoint() of a universal checkpoint, as `checkpoint.load_universal` asks for it.

Comes from: ballast.deepspeed.engine. Goes to: ballast.ds_checkpoint, optimizer.load_export(). The
state goes into the engine's own job. Thread safety: as the engine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ballast.deepspeed import folder
from ballast.deepspeed.checkpoint import Parts, begin_round
from ballast.deepspeed.schedule import ServiceSchedule, saved_position
from ballast.ds_checkpoint.torch_file import FileTensor
from ballast.ds_checkpoint.universal import LATEST
from ballast.ds_checkpoint.universal_model import UniversalModel, universal_model
from ballast.errors import BadArgument, Unsupported, warn

if TYPE_CHECKING:
    from ballast.deepspeed.engine import DeepSpeedEngine


def load(
    engine: DeepSpeedEngine, load_dir: str, tag: Any, parts: Parts
) -> tuple[str | None, Any]:
    """See DeepSpeedEngine.load_checkpoint(). Unsupported for the module alone."""
    whole = parts.load_optimizer_states and not parts.load_module_only
    if not whole or parts.custom_load_fn is not None:
        raise Unsupported(
            "a universal checkpoint is loaded with its optimizer's state; for its weights alone "
            "give optimizer.load_export() the safetensors of `ballastctl export`, or of "
            "save_16bit_model(dir, 'model.safetensors')"
        )
    optimizer = engine.trained("load_checkpoint")
    strict, schedule = parts.load_module_strict, parts.load_lr_scheduler_states
    if tag is None and not os.path.isfile(os.path.join(load_dir, LATEST)):
        other = ""
        if folder.latest(load_dir) is not None:
            other = ", but that of save_checkpoint() (leave checkpoint.load_universal out)"
        warn(f"{load_dir} has no file {LATEST!r}{other}: nothing is loaded")
        return None, None
    model = universal_model(load_dir, None if tag is None else str(tag))
    index = _position(engine, model) if schedule else None
    beside = _beside(engine, model, strict)
    optimizer.load_export(model.folder, index)
    _apply(engine, model, beside, schedule)
    return model.folder, model.client_state


def _position(engine: DeepSpeedEngine, model: UniversalModel) -> int | None:
    """The position of the checkpoint's schedule, for the service's; None: there is nothing to
    move."""
    if not isinstance(engine.lr_scheduler, ServiceSchedule):
        return None
    index = saved_position(model.lr_scheduler or {}, model.folder)
    if index is not None:
        return index
    if not model.counters.get("global_steps"):
        return None
    raise Unsupported(
        f"{model.folder} is of round {model.counters['global_steps']} and does not say where its "
        "schedule stands; pass load_lr_scheduler_states=False to begin the ds_config's anew"
    )


def _beside(
    engine: DeepSpeedEngine, model: UniversalModel, strict: bool
) -> Mapping[str, FileTensor]:
    """Buffers and frozen parameters that the file has, checked against the module."""
    stepped = {id(p) for group in engine.optimizer.param_groups for p in group["params"]
               if p.requires_grad}  # fmt: skip
    here = engine.module.state_dict(keep_vars=True)
    for name, value in model.module.items():
        if name not in here and strict:
            raise BadArgument(f"{model.folder} has {name!r}, which the module lacks")
        if name in here and tuple(here[name].shape) != value.shape:
            shapes = f"{list(value.shape)}, and the module's is {list(here[name].shape)}"
            raise BadArgument(f"{model.folder}: {name!r} has the shape {shapes}")
    return {n: v for n, v in model.module.items() if n in here and id(here[n]) not in stepped}


def _load_schedule(scheduler: Any, saved: dict[str, Any]) -> None:
    # DeepSpeed's schedules count from -1, torch's from 0. Values not in the file stay.
    if "last_batch_iteration" in saved:
        saved.setdefault("last_epoch", saved["last_batch_iteration"] + 1)
    scheduler.load_state_dict({**scheduler.state_dict(), **saved})


def _apply(
    engine: DeepSpeedEngine,
    model: UniversalModel,
    beside: Mapping[str, FileTensor],
    schedule: bool,
) -> None:
    here = engine.module.state_dict()
    for name, value in beside.items():
        here[name].copy_(value.read())
    if schedule and engine.lr_scheduler is not None and model.lr_scheduler is not None:
        _load_schedule(engine.lr_scheduler, dict(model.lr_scheduler))
    steps = model.counters.get("global_steps", 0)
    samples = model.counters.get("global_samples", steps * engine.train_batch_size())
    counters = {
        "micro_steps": steps * engine.gradient_accumulation_steps(),
        "global_steps": steps,
        "global_samples": samples,
        "skipped_steps": model.counters.get("skipped_steps", 0),
    }
    begin_round(engine, counters)
