"""`import ballast.deepspeed as deepspeed`: DeepSpeed's training loop over state in the service.

Comes from: DeepSpeed scripts, of which the import is changed. Goes to: ballast.torch,
ballast.monitor, ballast.ds_config. Thread safety: as ballast.torch. Any DeepSpeed name absent here
raises AttributeError or, in an import statement, ModuleNotFoundError, which say what to use.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch

from ballast import config as job_config
from ballast.deepspeed import building, checkpointing, comm, submodules, utils, zero
from ballast.deepspeed.accelerator import get_accelerator
from ballast.deepspeed.boundary import BadCall, Boundary
from ballast.deepspeed.comm import init_distributed
from ballast.deepspeed.engine import DeepSpeedEngine
from ballast.deepspeed.logs import log_dist, logger
from ballast.deepspeed.progress import Progress
from ballast.deepspeed.script_tools import VERSION as __version__
from ballast.deepspeed.settings import Settings, add_config_arguments, config_of
from ballast.deepspeed.transfers import Transfers
from ballast.ds_config import launched
from ballast.ds_config.errors import DsConfigError as DeepSpeedConfigError
from ballast.ds_config.source import Config, load
from ballast.errors import at_border
from ballast.monitor import Monitor
from ballast.pauses import say

__all__ = [
    "DeepSpeedConfigError", "DeepSpeedEngine", "__version__", "add_config_arguments",
    "checkpointing", "comm", "dist", "get_accelerator", "init_distributed", "initialize",
    "log_dist", "logger", "ops", "utils", "zero",
]  # fmt: skip

submodules.find()
ops = importlib.import_module("ballast.deepspeed.ops")
dist = comm
__version_major__, __version_minor__, __version_patch__ = map(int, __version__.split("."))
__git_hash__ = __git_branch__ = "unknown"


@at_border
def initialize(
    args: Any = None,
    model: torch.nn.Module | None = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int | None = None,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    config: Config | None = None,
    mesh_param: Any = None,
    config_params: Config | None = None,
) -> tuple[DeepSpeedEngine, Any, Any, Any]:
    """(engine, optimizer, training_dataloader, lr_scheduler), as deepspeed.initialize() gives them.

    model: its parameters are cast to the dtype of the ds_config. optimizer: None for the
    ds_config's, an optimizer of torch or Ballast, or a function of the parameters. Without any the
    engine only computes. model_parameters: what to train; all parameters with requires_grad by
    default. training_data: a Dataset, of which each trainer gets its part. lr_scheduler: None for
    the ds_config's schedule, which the service moves, a scheduler on `optimizer`, or a function of
    the optimizer that initialize() returns. config, config_params, args.deepspeed_config: one of
    them, or the file of ballast-run --ds-config, whose --mixed-precision fills fp16.enabled and
    bf16.enabled. The servers come from the environment, as for bt.AdamW.
    dist_init_required=False: torch.distributed has begun. distributed_port, mesh_param: nothing.
    With several trainers, and in a run that may be resumed, it attaches: all trainers call it, and
    the model then has the lowest rank's weights, or those of the job.
    Raises BadArgument and Unsupported, all refused keys in one text; then nothing has begun.
    """
    if not isinstance(model, torch.nn.Module):
        raise BadCall(f"initialize(): model is a {type(model).__name__}, not a torch.nn.Module")
    building.refuse_parallel(mpu)
    comm.refuse_unbegun(dist_init_required)
    world, rank = job_config.seat(os.environ)
    document = launched.precise(load(config_of(args, config, config_params)).values)
    settings = Settings(document, world)
    _say_what_is_left(settings, rank)
    module = building.cast(model, settings)
    opt = building.optimizer_of(optimizer, model_parameters, module, settings)
    schedule = building.scheduler_of(lr_scheduler, opt, settings)
    loader = building.loader_of(training_data, settings, world, rank, collate_fn)
    engine = DeepSpeedEngine(
        module,
        opt,
        schedule,
        loader,
        _boundary(settings, world),
        Monitor(document, rank),
        settings,
        Progress(settings["steps_per_print"], settings["wall_clock_breakdown"], rank),
        _transfers(settings, rank),
    )
    engine.enter()
    return engine, opt, loader, schedule


def _say_what_is_left(settings: Settings, rank: int) -> None:
    if settings.alongside and rank == 0:
        what = "which the engine leaves to the script; `ballastctl ds check` says how"
        say(rank, f"the ds_config switches on {', '.join(settings.alongside)}, {what}")


def _transfers(settings: Settings, rank: int) -> Transfers | None:
    """What comm.log_summary() shows from now on; None without comms_logger."""
    if not settings["comms_logger.enabled"]:
        return None
    operations = settings["comms_logger.prof_ops"]
    if settings["comms_logger.prof_all"]:
        operations = ()
    elif not operations:
        return None
    transfers = Transfers(operations, settings["comms_logger.verbose"], rank)
    comm.show(transfers)
    return transfers


def _boundary(settings: Settings, world: int) -> Boundary:
    batch = settings.batch
    assert batch.micro is not None and batch.accumulation is not None
    managed = settings["managed_gradient_accumulation"]
    return Boundary(batch.micro, batch.accumulation, world, managed)


__getattr__ = submodules.advise("")
