"""The parts of an engine: the optimizer in the service, the schedule, the loader of batches.

Comes from: ballast.deepspeed.initialize. Goes to: ballast.torch. Thread safety: as ballast.torch.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import Dataset

import ballast.torch as bt
from ballast import schedules
from ballast.config import endpoints_of
from ballast.deepspeed import basic_optimizer
from ballast.deepspeed.casting import cast
from ballast.deepspeed.loader import Loader
from ballast.deepspeed.schedule import ServiceSchedule
from ballast.deepspeed.settings import Settings
from ballast.errors import BadArgument, Unsupported
from ballast.loss_scale import DynamicLossScale
from ballast.pauses import say
from ballast.schedules import Schedule
from ballast.torch.service_optimizer import ServiceOptimizer

_PARAMS = "optimizer.params"
_ADAM = ("lr", "betas", "eps", "weight_decay", "amsgrad")
# Of each optimizer.type: the class, and the params for its arguments.
_CLASSES: dict[str, tuple[type[ServiceOptimizer], tuple[str, ...]]] = {
    "AdamW": (bt.AdamW, _ADAM),
    "Adam": (bt.Adam, _ADAM),
    "Adagrad": (bt.Adagrad, ("lr", "eps", "weight_decay")),
    "Lion": (bt.Lion, ("lr", "betas", "weight_decay")),
    "Lamb": (
        bt.LAMB,
        ("lr", "betas", "eps", "weight_decay", "bias_correction", "max_coeff", "min_coeff"),
    ),
    "SGD": (bt.SGD, ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")),
}
# Of the section `ballast`: arguments of a class.
_SECTION = ("endpoints", "job", "durability", "profile", "init")


class UntestedOptimizer(Unsupported, AssertionError):
    """An optimizer that cannot be taken over, for which DeepSpeed has an AssertionError, too."""


def loss_scale(settings: Settings) -> float | DynamicLossScale:
    """The factor of the loss: that of fp16, where 0 means a dynamic one; 1 otherwise.

    Under the profile DeepSpeed a configuration of stage 0 has no hysteresis: DeepSpeed's optimizer
    of that stage (FP16_Optimizer._update_scale) halves the scale at every overflow.
    """
    if not settings["fp16.enabled"]:
        return 1.0
    fixed = float(settings["fp16.loss_scale"])
    names = [field.name for field in dataclasses.fields(DynamicLossScale)]
    values = {name: settings[f"fp16.{name}"] for name in names}
    if settings["ballast.profile"] == "deepspeed" and settings["zero_optimization.stage"] == 0:
        values["hysteresis"] = 1
    return fixed or DynamicLossScale(**values)


def schedule_of(settings: Settings) -> Schedule | None:
    """The schedule of the scheduler section, for the service; None without one."""
    kind = settings["scheduler.type"]
    if kind is None:
        return None
    arguments = settings.under("scheduler.params")
    if arguments.pop("last_batch_iteration", -1) != -1:
        raise Unsupported(
            "scheduler.params.last_batch_iteration is not -1: the position of a schedule comes "
            "with the job; leave it out"
        )
    return schedules.ALL[kind](**{k: v for k, v in arguments.items() if v is not None})


def sums_in_fp32(settings: Settings) -> bool:
    """Whether gradients of a model of 16 bits add up in fp32."""
    short = settings["fp16.enabled"] or settings["bf16.enabled"]
    return bool(short) and settings["data_types.grad_accum_dtype"] == "fp32"


def optimizer_of(
    given: Any, parameters: Any, model: torch.nn.Module, settings: Settings
) -> ServiceOptimizer | None:
    """The optimizer, whose state is in the service; None where none is asked for.

    given: initialize()'s optimizer: None for the configuration's, one of torch's, a Ballast one, or
    a function of the parameters that makes one. parameters: initialize()'s model_parameters.
    Raises BadArgument or Unsupported, by name, for one that does not fit.
    """
    if given is None and settings["optimizer.type"] is None:
        return None
    return basic_optimizer.give(_optimizer(given, parameters, model, settings))


def _optimizer(
    given: Any, parameters: Any, model: torch.nn.Module, settings: Settings
) -> ServiceOptimizer:
    if given is None:
        return _configured(parameters, model, settings)
    if not isinstance(given, torch.optim.Optimizer) and callable(given):
        given = given(_named(parameters, model))
    if isinstance(given, ServiceOptimizer):
        return _checked(given, settings)
    if not isinstance(given, torch.optim.Optimizer):
        raise BadArgument(f"initialize(): optimizer is a {type(given).__name__}, not an optimizer")
    return _taken_over(given, model, settings)


def _taken_over(
    given: torch.optim.Optimizer, model: torch.nn.Module, settings: Settings
) -> ServiceOptimizer:
    """A Ballast optimizer in place of torch's. Schedules that hold torch's drive ours, too."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "a learning-rate scheduler was built", UserWarning)
        try:
            ours = bt.wrap(given, model=model, **{"init": "broadcast", **_job(settings)})
        except Unsupported as error:
            raise UntestedOptimizer(error.message) from None
    given.param_groups = ours.param_groups
    # A schedule warns when the optimizer that it holds has not stepped; ours does.
    given._opt_called = True  # type: ignore[attr-defined]
    return ours


def _configured(parameters: Any, model: torch.nn.Module, settings: Settings) -> ServiceOptimizer:
    of, options = configured(settings)
    # As in DeepSpeed, all trainers begin with the lowest rank's weights; the file may differ.
    return of(_named(parameters, model), model=model, **{"init": "broadcast", **options})


def configured(settings: Settings) -> tuple[type[ServiceOptimizer], dict[str, Any]]:
    """The class of the configuration's optimizer, and its arguments but for the parameters.

    Raises BadArgument where the configuration has no optimizer, Unsupported for an unknown one.
    """
    kind = settings["optimizer.type"]
    if kind is None:
        raise BadArgument(
            "initialize(): no optimizer was given, and the ds_config has no optimizer.type; "
            'write "optimizer": {"type": "AdamW", "params": {"lr": ...}}'
        )
    # DeepSpeed reads the name in any case.
    kind = {name.lower(): name for name in _CLASSES}.get(kind.lower(), kind)
    if kind == "Adam" and settings[f"{_PARAMS}.adam_w_mode"]:
        kind = "AdamW"  # as DeepSpeed reads it
    if kind not in _CLASSES:
        raise Unsupported(f"optimizer.type {kind} is not made here; {', '.join(_CLASSES)} are")
    of, arguments = _CLASSES[kind]
    options = {key: settings[f"{_PARAMS}.{key}"] for key in arguments}
    return of, {**options, **_job(settings)}


def _job(settings: Settings) -> dict[str, Any]:
    clip = settings["gradient_clipping"]
    return {
        "max_grad_norm": clip or None,
        "loss_scale": loss_scale(settings),
        "lr_schedule": schedule_of(settings),
        **_section(settings),
    }


def _section(settings: Settings) -> dict[str, Any]:
    """The job's settings in the section `ballast`; the environment says the rest."""
    given = {name: settings[f"ballast.{name}"] for name in _SECTION}
    if given["endpoints"] is not None:
        given["endpoints"] = endpoints_of(given["endpoints"], {})
    return {name: value for name, value in given.items() if value is not None}


def _named(parameters: Any, model: torch.nn.Module) -> Any:
    """The parameters to train, with names where initialize() was given none."""
    if parameters is None:
        return [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return list(parameters) if isinstance(parameters, Iterable) else parameters


def _checked(optimizer: ServiceOptimizer, settings: Settings) -> ServiceOptimizer:
    """The Ballast optimizer itself, if it fits the configuration."""
    config = optimizer._membership.config
    for key, has, wanted in (
        ("max_grad_norm", config.max_grad_norm, float(settings["gradient_clipping"])),
        ("loss_scale", config.loss_scale, loss_scale(settings)),
        ("lr_schedule", config.lr_schedule, schedule_of(settings)),
        *((name, getattr(config, name), value) for name, value in _section(settings).items()),
    ):
        if has != wanted:
            raise BadArgument(
                f"the optimizer was made with {key}={_shown(has)}, and the ds_config says "
                f"{_shown(wanted)} (gradient_clipping is 1.0 by default, fp16.loss_scale counts "
                "with fp16); make both equal, or let initialize() make the optimizer"
            )
    return optimizer


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)


def scheduler_of(given: Any, optimizer: ServiceOptimizer | None, settings: Settings) -> Any:
    """initialize()'s lr_scheduler: an existing one, or a function of the optimizer.

    None with the configuration's schedule, which the service moves. Without an optimizer there is
    no schedule, whatever is given, as in DeepSpeed.
    """
    kind = settings["scheduler.type"]
    if optimizer is None:
        return None
    if kind is not None:
        if given is None:
            return ServiceSchedule(optimizer)
        raise BadArgument(
            f"lr_scheduler was given, and the ds_config has scheduler.type {kind}; leave one of "
            "the two out"
        )
    if given is None or hasattr(given, "step"):
        held = getattr(given, "optimizer", optimizer)
        if held.param_groups is not optimizer.param_groups:
            raise BadArgument(
                "lr_scheduler was built on another optimizer than initialize() was given, so it "
                "would change nothing; pass a function: lr_scheduler=lambda opt: Schedule(opt, ...)"
            )
        return given
    if not callable(given):
        raise BadArgument(f"lr_scheduler is a {type(given).__name__}, which has no step()")
    return given(optimizer)


def loader_of(
    data: Dataset[Any] | None,
    settings: Settings,
    world: int,
    rank: int,
    collate: Callable[[list[Any]], Any] | None,
) -> Loader | None:
    """A loader of this trainer's micro-batches; each trainer gets its own part of the data."""
    if data is None:
        return None
    micro = settings.batch.micro
    assert micro is not None
    return Loader(data, micro, world, rank, collate, settings["dataloader_drop_last"])


def share_weights(model: torch.nn.Module, world: int, rank: int) -> None:
    """Rank 0's weights on all trainers, for an engine without an optimizer, which is in no job.

    Over torch.distributed, where the script has begun it, as DeepSpeed does; else a line says that
    each trainer keeps its own.
    """
    if world == 1:
        return
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        say(rank, "an engine without an optimizer: each trainer keeps the weights that it has; "
            "init_distributed() before initialize() brings rank 0's")  # fmt: skip
        return
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            torch.distributed.broadcast(tensor, 0)


def wait_for_rank_0(optimizer: ServiceOptimizer | None = None) -> None:
    """Where no job of an `optimizer` tells the others that rank 0 has written its checkpoint.
    Nothing without torch.distributed: then the script sees to it."""
    if optimizer is None and torch.distributed.is_available():
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


def refuse_parallel(mpu: Any) -> None:
    """Unsupported for a model split over trainers."""
    for name in ("get_model_parallel_world_size", "get_tensor_model_parallel_world_size"):
        size = getattr(mpu, name, None)
        if inspect.ismethod(size) or inspect.isfunction(size):
            if size() != 1:
                raise Unsupported(
                    f"mpu.{name}() is {size()}: each trainer has the whole model; pass mpu=None"
                )
