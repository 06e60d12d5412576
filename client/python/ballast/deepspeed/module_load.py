"""load_checkpoint() of the module without the optimizer's state: the present job gets its weights.

Comes from: ballast.deepspeed.engine. Goes to: ballast.deepspeed.folder, and a round of the present
job. The checkpoint may be of another optimizer, another job or none. Thread safety: as the engine.

Source: deepspeed/runtime/engine.py of 0.19.8, _load_checkpoint(): moments, step counts and
hyper-parameters stay as they are, and the masters become the weights of the module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ballast.deepspeed import checkpoint, folder
from ballast.deepspeed.schedule import ServiceSchedule, saved_position
from ballast.torch.service_optimizer import ServiceOptimizer

if TYPE_CHECKING:
    from ballast.deepspeed.engine import DeepSpeedEngine


def load(
    engine: DeepSpeedEngine, load_dir: str, tag: Any, parts: checkpoint.Parts
) -> tuple[str | None, Any]:
    """See DeepSpeedEngine.load_checkpoint(); for an engine without an optimizer, too."""
    folder.check_directory(load_dir)
    checkpoint.wait_for_rank_0(engine, load_dir)
    wanted = checkpoint.tag_of(load_dir, tag)
    if wanted is None:
        return None, None
    values, untrained, client_state = checkpoint.read(load_dir, wanted)
    path = os.path.join(load_dir, wanted)
    module = {**folder.read_weights(load_dir, wanted, values), **untrained}
    schedule = parts.load_lr_scheduler_states and not parts.load_module_only
    index = _position(engine, values, path) if schedule else None
    if parts.custom_load_fn is not None:
        parts.custom_load_fn(src=module, dst=engine.module)
    else:
        untrained, weights = checkpoint.tensors_of(engine)
        strict, needed = parts.load_module_strict, {**untrained, **weights}
        checkpoint.check_module(engine.module, module, strict, path, needed)
        checkpoint.put(engine.module, module)
    checkpoint.begin_round(engine, {key: getattr(engine, key) for key in checkpoint.COUNTERS})
    if engine.optimizer is not None:
        _send(engine.optimizer, index)
        engine.show_rates()
    if not parts.load_module_only:
        checkpoint.take_place(engine, values, schedule)
    return path, client_state


def _position(engine: DeepSpeedEngine, values: Mapping[str, Any], path: str) -> int | None:
    """The new position of the service's schedule; None: it stays, or there is none."""
    if not isinstance(engine.lr_scheduler, ServiceSchedule):
        return None
    index = saved_position(values["lr_scheduler"] or {}, path)
    return None if index == engine.lr_scheduler.last_batch_iteration else index


def _send(optimizer: ServiceOptimizer, index: int | None) -> None:
    """The module's weights become the masters of the present job, whose moments stay.

    Before the job begins there is nothing to send: it begins with them.
    """
    if index is None:
        optimizer.upload_weights()
        return
    state = {}
    if optimizer.opt_step:
        state = optimizer.export_state()["state"]
        for arrays in state.values():
            arrays.pop("master")
    optimizer.load_export({**optimizer.state_dict(), "state": state, "ballast": None}, index)
