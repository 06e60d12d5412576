"""save_checkpoint() and load_checkpoint(): a snapshot on the servers, and a directory.

Comes from: ballast.deepspeed.engine. Goes to: ballast.deepspeed.folder, ballast._rejoin. The
snapshot has masters, state arrays and step counts. The directory has the module, hyper-parameters,
the schedule, counters, the script's values; ballast.deepspeed.module_load takes the module alone.
Thread safety: as the engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ballast import _rejoin
from ballast.deepspeed import building, comm, folder
from ballast.deepspeed.schedule import ServiceSchedule
from ballast.deepspeed.submodules import advise
from ballast.ds_checkpoint.universal import LATEST as UNIVERSAL
from ballast.errors import BadArgument, BallastError, NameInUse, Unsupported, warn
from ballast._plain_values import Packer, unpack
from ballast.torch.service_optimizer import ServiceOptimizer

if TYPE_CHECKING:
    from ballast.deepspeed.engine import DeepSpeedEngine

# DeepSpeed has a package of this name, of which nothing is here.
__path__: list[str] = []
__getattr__ = advise("checkpoint")

COUNTERS = ("micro_steps", "global_steps", "global_samples", "skipped_steps")
_NO_HYPER = ("params", "param_names")
# Directories that this process has saved to, and whether rank 0 may be writing there still.
_written: dict[str, Callable[[], bool]] = {}


@dataclasses.dataclass(frozen=True)
class Parts:
    """What load_checkpoint() is asked for, by the names of its arguments."""

    load_module_strict: bool
    load_optimizer_states: bool
    load_lr_scheduler_states: bool
    load_module_only: bool
    custom_load_fn: Callable[..., Any] | None


def save(
    engine: DeepSpeedEngine,
    save_dir: str,
    tag: Any,
    client_state: Mapping[str, Any],
    save_latest: bool,
    exclude_frozen: bool,
) -> None:
    """See DeepSpeedEngine.save_checkpoint(). All trainers attach and check; rank 0 writes."""
    folder.check_directory(save_dir)
    if not isinstance(client_state, Mapping):
        raise BadArgument(f"client_state is a {type(client_state).__name__}, not a dict")
    name = folder.check_tag(f"global_step{engine.global_steps}" if tag is None else tag)
    optimizer = engine.optimizer
    if optimizer is not None:
        optimizer.attach()
        if optimizer.round == 0:  # The servers keep a round's durable state: this is a round.
            optimizer.upload_weights()
    packer = Packer()
    untrained, weights = tensors_of(engine, exclude_frozen)
    values = {
        "counters": {key: getattr(engine, key) for key in COUNTERS},
        "data": getattr(engine.training_dataloader, "position", 0),
        "epoch": getattr(engine.training_dataloader, "epoch", 0),
        "groups": packer.pack([_hyper(g) for g in engine._groups()], "param_groups"),
        "lr_scheduler": _schedule(engine.lr_scheduler, packer),
        "module": packer.pack(untrained, "module"),
        "client_state": packer.pack(dict(client_state), "client_state"),
    }
    _written[os.path.realpath(save_dir)] = _until_next_round(optimizer)
    if engine.global_rank != 0:
        return
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(save_dir, folder.LOADING))
    values.update(_of_job(optimizer, name))
    before = folder.write(save_dir, name, values, packer.tensors, weights)
    if save_latest:
        folder.write_latest(save_dir, name)
    if optimizer is not None:
        _remove_replaced(optimizer, before, values["snapshot"])


def _until_next_round(optimizer: ServiceOptimizer | None) -> Callable[[], bool]:
    """Whether no round has ended since now: rank 0 takes part in the next one when it has written.

    Without an optimizer nothing tells, and it is true.
    """
    now = None if optimizer is None else (optimizer.job_id, optimizer.round)
    held = None if optimizer is None else weakref.ref(optimizer)

    def lasts() -> bool:
        there = None if held is None else held()
        return there is None or (there.job_id, there.round) == now

    return lasts


def wait_for_rank_0(engine: DeepSpeedEngine, load_dir: str) -> None:
    """Before all trainers read what only rank 0 writes.

    Without torch.distributed nothing can be waited for: Unsupported where this process has saved
    there, and no round has ended since.
    """
    building.wait_for_rank_0()
    if engine.world_size == 1 or comm.is_initialized():
        return
    if _written.get(os.path.realpath(load_dir), lambda: False)():
        later = "" if engine.optimizer is None else ", or load after the next step()"
        raise Unsupported(
            f"{load_dir}: rank 0 may still be writing what save_checkpoint() has begun, and "
            "without torch.distributed the other trainers cannot wait for it: call "
            f"deepspeed.init_distributed() at the beginning{later}"
        )


def load(
    engine: DeepSpeedEngine, load_dir: str, tag: Any, parts: Parts
) -> tuple[str | None, Any]:
    """See DeepSpeedEngine.load_checkpoint(); with the optimizer's state."""
    if parts.custom_load_fn is not None:
        raise Unsupported(
            "custom_load_fn needs load_module_only=True or load_optimizer_states=False: with the "
            "optimizer's state the weights come from the servers"
        )
    optimizer = engine.trained("load_checkpoint")
    wanted = tag_of(load_dir, tag)
    if wanted is None:
        return None, None
    strict, position = parts.load_module_strict, _position(engine)

    def make() -> _rejoin.Fork:
        assert wanted is not None
        values = _read_all(engine, load_dir, wanted, strict)[0]
        job, snapshot = str(values["job"]), str(values["snapshot"])
        _check_snapshot(optimizer, job, snapshot, os.path.join(load_dir, wanted))
        return _rejoin.fork(optimizer, wanted, job, snapshot, values["round"])

    # Without a tag this rank takes rank 0's, whatever DIR/latest has said here.
    asked = wanted if tag is not None or optimizer.rank == 0 else ""
    fork = _rejoin.agree(optimizer, make, os.path.join(load_dir, folder.LOADING), asked)
    values, untrained, client_state = _read_all(engine, load_dir, fork.tag, strict)
    _rejoin.join(optimizer, fork.job)
    engine.commit_place()
    _apply(engine, values, untrained, parts.load_lr_scheduler_states)
    if not parts.load_lr_scheduler_states and position != _position(engine):
        optimizer.load_export(optimizer.export_state(), position)
        engine.show_rates()
    return os.path.join(load_dir, fork.tag), client_state


def _position(engine: DeepSpeedEngine) -> int | None:
    """The position of the service's schedule; None without one."""
    schedule = engine.lr_scheduler
    return schedule.last_batch_iteration if isinstance(schedule, ServiceSchedule) else None


def tag_of(load_dir: str, tag: Any) -> str | None:
    """The tag to load, that of DIR/latest for None; None, and a warning, without that file."""
    folder.check_directory(load_dir)
    if tag is not None:
        return folder.check_tag(tag)
    wanted = folder.latest(load_dir)
    if wanted is None:
        other = _other_kind(load_dir)
        warn(f"{load_dir} has no file {folder.LATEST!r}{other}: nothing is loaded")
    return wanted


def _other_kind(load_dir: str) -> str:
    if not os.path.isfile(os.path.join(load_dir, UNIVERSAL)):
        return ""
    return (
        ", but that of a universal checkpoint (to load it, write "
        '"checkpoint": {"load_universal": true} into the ds_config)'
    )


def _hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in _NO_HYPER}


def _schedule(scheduler: Any, packer: Packer) -> Any:
    if scheduler is None or not hasattr(scheduler, "state_dict"):
        return None
    return packer.pack(scheduler.state_dict(), "lr_scheduler.state_dict()")


def tensors_of(
    engine: DeepSpeedEngine, exclude_frozen: bool = False
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(buffers and frozen parameters of the module, its parameters in the job)."""
    stepped = {id(p) for group in engine._groups() for p in group["params"] if p.requires_grad}
    untrained: dict[str, torch.Tensor] = {}
    weights: dict[str, torch.Tensor] = {}
    for name, value in engine.module.state_dict(keep_vars=True).items():
        if _is_extra(name):
            untrained[name] = value
        elif not isinstance(value, torch.Tensor):
            continue
        elif id(value) in stepped:
            weights[name] = value.detach()
        elif not (exclude_frozen and _is_frozen(value)):
            untrained[name] = value
    return untrained, weights


def _is_extra(name: str) -> bool:
    """Whether that name in a state dict holds the value of a get_extra_state()."""
    return name.rpartition(".")[2] == "_extra_state"


def _is_frozen(value: torch.Tensor) -> bool:
    return isinstance(value, torch.nn.Parameter) and not value.requires_grad


def _of_job(optimizer: ServiceOptimizer | None, tag: str) -> dict[str, Any]:
    """The state on the servers that a checkpoint names, of which a snapshot is taken."""
    if optimizer is None:
        return {"job": None, "snapshot": None, "round": 0}
    return {
        "job": optimizer.job,
        "round": optimizer.round,
        "world_size": optimizer.world_size,
        "snapshot": _snapshot(optimizer, tag),
    }


def _snapshot(optimizer: ServiceOptimizer, tag: str) -> str:
    """Takes the snapshot; its name is the tag, or a name that no other state has."""
    with contextlib.suppress(NameInUse):
        optimizer.snapshot(tag)
        return tag
    # Of an earlier round, or of an earlier job of this name, whose snapshots have outlived it.
    name = f"{tag[:80]}.{optimizer.job_id:016x}.{optimizer.round}"
    with contextlib.suppress(NameInUse):  # the same state
        optimizer.snapshot(name)
    return name


def _remove_replaced(
    optimizer: ServiceOptimizer, before: Mapping[str, Any] | None, now: str
) -> None:
    """Removes the snapshot of an overwritten checkpoint. Failing costs disk, no state."""
    if before is None or before["snapshot"] is None:
        return
    if (before["job"], before["snapshot"]) == (optimizer.job, now):
        return
    try:
        _rejoin.control_of(optimizer).delete_snapshot(before["job"], before["snapshot"])
    except BallastError as error:
        warn(f"the snapshot of the replaced checkpoint stays on the servers: {error.message}")


def _check_snapshot(optimizer: ServiceOptimizer, job: str, name: str, path: str) -> None:
    found = _rejoin.control_of(optimizer).snapshots(job)
    if all(one["name"] != name for one in found):
        there = ", ".join(one["name"] for one in found) or "none"
        raise BadArgument(
            f"{path} is of snapshot {name!r} of job {job!r}, which the servers do not have; the "
            f"job's snapshots are: {there}"
        )


def _read_all(
    engine: DeepSpeedEngine, load_dir: str, tag: str, strict: bool
) -> tuple[dict[str, Any], dict[str, torch.Tensor], Any]:
    """As read(), checked against the engine, for a load with the optimizer's state."""
    values, untrained, client_state = read(load_dir, tag)
    path = os.path.join(load_dir, tag)
    if values["snapshot"] is None:
        raise BadArgument(
            f"{path} was saved by an engine without an optimizer; load its weights alone, with "
            "load_optimizer_states=False or load_module_only=True"
        )
    _check_groups(engine.optimizer, values["groups"], path)
    check_module(engine.module, untrained, strict, path, tensors_of(engine)[0])
    return values, untrained, client_state


def read(load_dir: str, tag: str) -> tuple[dict[str, Any], dict[str, torch.Tensor], Any]:
    """(values, tensors of the module in no job, client_state)."""
    values, tensors = folder.read(load_dir, tag)
    path = os.path.join(load_dir, tag)
    try:
        for key in ("groups", "lr_scheduler", "module"):
            values[key] = unpack(values.get(key), tensors)
        client_state = unpack(values["client_state"], tensors)
        values["counters"] = {key: int(values["counters"][key]) for key in COUNTERS}
        values["round"] = int(values["round"])
        values["data"] = int(values.get("data", 0))
        values["epoch"] = int(values.get("epoch", 0))
        untrained = dict(values["module"])
    except (ValueError, TypeError, KeyError) as error:
        raise BadArgument(f"{path} is damaged: {error}") from None
    return values, untrained, client_state


def _check_groups(optimizer: ServiceOptimizer, saved: Any, path: str) -> None:
    here = optimizer.param_groups
    if not isinstance(saved, list) or len(saved) != len(here):
        count = len(saved) if isinstance(saved, list) else saved
        raise BadArgument(f"{path} has {count} param_groups, and the optimizer has {len(here)}")
    for i, group in enumerate(saved):
        where = f"param_groups[{i}] of {path}"
        optimizer._kind.refuse_group({**optimizer.defaults, **group}, here, where)


def check_module(
    module: torch.nn.Module,
    saved: Mapping[str, torch.Tensor],
    strict: bool,
    path: str,
    needed: Mapping[str, torch.Tensor],
) -> None:
    """BadArgument for tensors of another shape, and with strict for names of one side only.

    needed: the module's tensors that nothing but `saved` has.
    """
    here = module.state_dict()
    for name, value in saved.items():
        if name not in here:
            if strict:
                raise BadArgument(f"{path} has {name!r}, which the module lacks")
        elif not _is_extra(name) and here[name].shape != value.shape:
            shapes = f"{list(value.shape)}, and the module's is {list(here[name].shape)}"
            raise BadArgument(f"{path}: {name!r} has the shape {shapes}")
    missing = [name for name in needed if name not in saved]
    if strict and missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        frozen = any(_is_frozen(needed[name]) for name in missing)
        raise BadArgument(
            f"{path} lacks {', '.join(map(repr, missing[:3]))}{more}, which the module has; "
            f"{'save it without exclude_frozen_parameters, or ' if frozen else ''}"
            "pass load_module_strict=False, which leaves such tensors as they are"
        )


def _apply(
    engine: DeepSpeedEngine,
    values: Mapping[str, Any],
    untrained: Mapping[str, torch.Tensor],
    schedule: bool,
) -> None:
    put(engine.module, untrained)
    # In place: schedules hold these groups.
    for group, saved in zip(engine.optimizer.param_groups, values["groups"]):
        group.update(saved)
    # A schedule of the service has its rates from the job.
    engine.optimizer._rounds.rates.loaded(engine.optimizer.param_groups)
    take_place(engine, values, schedule)


def put(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Values into the module's tensors of these names, and to set_extra_state(); others are left
    out."""
    here = module.state_dict()
    for name, value in tensors.items():
        if name in here and _is_extra(name):
            module.get_submodule(name.rpartition(".")[0]).set_extra_state(value)
        elif name in here:
            here[name].copy_(value)


def take_place(engine: DeepSpeedEngine, values: Mapping[str, Any], schedule: bool) -> None:
    """The script's schedule, training_data and the counters continue as the checkpoint says."""
    if schedule and engine.lr_scheduler is not None and values["lr_scheduler"] is not None:
        engine.lr_scheduler.load_state_dict(values["lr_scheduler"])
    if engine.training_dataloader is not None:
        engine.training_dataloader.resume(values["data"], values["epoch"])
    begin_round(engine, values["counters"])


def begin_round(engine: DeepSpeedEngine, counters: Mapping[str, int]) -> None:
    """The counters of a checkpoint. Gradients from before the load belong to other weights."""
    engine.zero_grad()
    if engine.optimizer is not None:
        engine.optimizer._accumulation.discard()
    engine._boundary.restore(**counters)
    engine.show_rates()
