"""save_checkpoint() and load_checkpoint(): a snapshot on the servers, and a small directory.

Comes from: ballast.deepspeed.engine. Goes to: ballast.deepspeed.folder, ballast.rejoin. The
snapshot has masters, state arrays and step counts. The directory has what the servers lack: buffers
and frozen parameters of the module, hyper-parameters, the schedule, counters, the script's values.
Thread safety: as the engine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ballast import rejoin
from ballast.deepspeed import folder
from ballast.ds_checkpoint.safetensors_file import DTYPES, write_safetensors
from ballast.deepspeed.submodules import advise
from ballast.ds_checkpoint.universal import LATEST as UNIVERSAL
from ballast.errors import BadArgument, BallastError, NameInUse, warn
from ballast.plain_values import Packer, unpack
from ballast.torch.service_optimizer import ServiceOptimizer

if TYPE_CHECKING:
    from ballast.deepspeed.engine import DeepSpeedEngine

# DeepSpeed has a package of this name, of which nothing is here.
__path__: list[str] = []
__getattr__ = advise("checkpoint")

_COUNTERS = ("micro_steps", "global_steps", "global_samples", "skipped_steps")
_NO_HYPER = ("params", "param_names")


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
    optimizer = engine.trained("save_checkpoint")
    optimizer.attach()
    if optimizer.round == 0:  # The servers keep what a round has made durable: this is one.
        optimizer.upload_weights()
    packer = Packer()
    values = {
        "counters": {key: getattr(engine, key) for key in _COUNTERS},
        "data": getattr(engine.training_dataloader, "position", 0),
        "epoch": getattr(engine.training_dataloader, "epoch", 0),
        "groups": packer.pack([_hyper(g) for g in optimizer.param_groups], "param_groups"),
        "lr_scheduler": _schedule(engine.lr_scheduler, packer),
        "module": packer.pack(_beside(engine.module, optimizer, exclude_frozen), "module"),
        "client_state": packer.pack(dict(client_state), "client_state"),
    }
    if optimizer.rank != 0:
        return
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(save_dir, folder.LOADING))
    values["job"], values["round"] = optimizer.job, optimizer.round
    values["world_size"] = optimizer.world_size
    values["snapshot"] = _snapshot(optimizer, name)
    before = folder.write(save_dir, name, values, packer.tensors)
    if save_latest:
        folder.write_latest(save_dir, name)
    _remove_replaced(optimizer, before, values["snapshot"])


def load(
    engine: DeepSpeedEngine, load_dir: str, tag: Any, strict: bool, schedule: bool
) -> tuple[str | None, Any]:
    """See DeepSpeedEngine.load_checkpoint(). strict: of the module; schedule: whether it loads."""
    folder.check_directory(load_dir)
    optimizer = engine.trained("load_checkpoint")
    wanted = None if tag is None else folder.check_tag(tag)
    if wanted is None and (optimizer.rank == 0 or folder.latest(load_dir) is None):
        wanted = folder.latest(load_dir)
        if wanted is None:
            other = _other_kind(load_dir)
            warn(f"{load_dir} has no file {folder.LATEST!r}{other}: nothing is loaded")
            return None, None

    def make() -> rejoin.Fork:
        assert wanted is not None  # on rank 0
        values = _read(engine, load_dir, wanted, strict)[0]
        job, snapshot = str(values["job"]), str(values["snapshot"])
        _check_snapshot(optimizer, job, snapshot, os.path.join(load_dir, wanted))
        return rejoin.fork(optimizer, wanted, job, snapshot, values["round"])

    fork = rejoin.agree(optimizer, make, os.path.join(load_dir, folder.LOADING), wanted or "")
    values, beside, client_state = _read(engine, load_dir, fork.tag, strict)
    rejoin.join(optimizer, fork.job)
    engine.commit_place()
    _apply(engine, values, beside, schedule)
    return os.path.join(load_dir, fork.tag), client_state


def _other_kind(load_dir: str) -> str:
    if not os.path.isfile(os.path.join(load_dir, UNIVERSAL)):
        return ""
    return (
        ", but that of a universal checkpoint (to load it, write "
        '"checkpoint": {"load_universal": true} into the ds_config)'
    )


def write_weights(path: str, state: Mapping[str, torch.Tensor]) -> None:
    """A module's state dict as a file: safetensors if the name says so, else torch.save()'s.

    Raises StorageFailed when the disk refuses, BadArgument for what safetensors cannot hold.
    """
    folder.make(os.path.dirname(path) or ".")
    if not path.endswith(".safetensors"):
        folder.replace(path, lambda part: torch.save(dict(state), part))
        return
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES:
            raise BadArgument(f"{path}: {name} cannot be in a safetensors file")
    tensors = {name: value.detach().cpu() for name, value in state.items()}
    plan = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    write_safetensors(path, plan, tensors.items(), {"format": "pt"})


def _hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in _NO_HYPER}


def _schedule(scheduler: Any, packer: Packer) -> Any:
    if scheduler is None or not hasattr(scheduler, "state_dict"):
        return None
    return packer.pack(scheduler.state_dict(), "lr_scheduler.state_dict()")


def _beside(
    module: torch.nn.Module, optimizer: ServiceOptimizer, exclude_frozen: bool
) -> dict[str, torch.Tensor]:
    """Tensors of the module that are not in the job: buffers, and parameters that are frozen."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]
               if p.requires_grad}  # fmt: skip
    state = module.state_dict(keep_vars=True)
    return {
        name: value
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and id(value) not in stepped
        and not (exclude_frozen and isinstance(value, torch.nn.Parameter))
    }  # fmt: skip


def _snapshot(optimizer: ServiceOptimizer, tag: str) -> str:
    """Takes the snapshot; its name is the tag, or one that no other state has."""
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
    """The snapshot of a checkpoint that was written over. Failing costs disk, no state."""
    if before is None or (before["job"], before["snapshot"]) == (optimizer.job, now):
        return
    try:
        rejoin.control_of(optimizer).delete_snapshot(before["job"], before["snapshot"])
    except BallastError as error:
        warn(f"the snapshot of the replaced checkpoint stays on the servers: {error.message}")


def _check_snapshot(optimizer: ServiceOptimizer, job: str, name: str, path: str) -> None:
    found = rejoin.control_of(optimizer).snapshots(job)
    if all(one["name"] != name for one in found):
        there = ", ".join(one["name"] for one in found) or "none"
        raise BadArgument(
            f"{path} is of snapshot {name!r} of job {job!r}, which the servers do not have; the "
            f"job's snapshots are: {there}"
        )


def _read(
    engine: DeepSpeedEngine, load_dir: str, tag: str, strict: bool
) -> tuple[dict[str, Any], dict[str, torch.Tensor], Any]:
    """(values, tensors beside the job, client_state), checked against the engine."""
    values, tensors = folder.read(load_dir, tag)
    path = os.path.join(load_dir, tag)
    try:
        for key in ("groups", "lr_scheduler", "module"):
            values[key] = unpack(values.get(key), tensors)
        client_state = unpack(values["client_state"], tensors)
        values["counters"] = {key: int(values["counters"][key]) for key in _COUNTERS}
        values["round"] = int(values["round"])
        values["data"] = int(values.get("data", 0))
        values["epoch"] = int(values.get("epoch", 0))
        beside = dict(values["module"])
    except (ValueError, TypeError, KeyError) as error:
        raise BadArgument(f"{path} is damaged: {error}") from None
    _check_groups(engine.optimizer, values["groups"], path)
    _check_module(engine.module, beside, strict, path)
    return values, beside, client_state


def _check_groups(optimizer: ServiceOptimizer, saved: Any, path: str) -> None:
    here = optimizer.param_groups
    if not isinstance(saved, list) or len(saved) != len(here):
        count = len(saved) if isinstance(saved, list) else saved
        raise BadArgument(f"{path} has {count} param_groups, and the optimizer has {len(here)}")
    for i, group in enumerate(saved):
        where = f"param_groups[{i}] of {path}"
        optimizer._kind.refuse_group({**optimizer.defaults, **group}, here, where)


def _check_module(
    module: torch.nn.Module, beside: Mapping[str, torch.Tensor], strict: bool, path: str
) -> None:
    here = module.state_dict()
    for name, value in beside.items():
        if name not in here:
            if strict:
                raise BadArgument(f"{path} has {name!r}, which the module lacks")
        elif here[name].shape != value.shape:
            shapes = f"{list(value.shape)}, and the module's is {list(here[name].shape)}"
            raise BadArgument(f"{path}: {name!r} has the shape {shapes}")


def _apply(
    engine: DeepSpeedEngine,
    values: Mapping[str, Any],
    beside: Mapping[str, torch.Tensor],
    schedule: bool,
) -> None:
    here = engine.module.state_dict()
    for name, value in beside.items():
        if name in here:
            here[name].copy_(value)
    # In place: schedules hold these groups.
    for group, saved in zip(engine.optimizer.param_groups, values["groups"]):
        group.update(saved)
    # A schedule of the service has its rates from the job.
    engine.optimizer._rounds.rates.loaded(engine.optimizer.param_groups)
    if schedule and engine.lr_scheduler is not None and values["lr_scheduler"] is not None:
        engine.lr_scheduler.load_state_dict(values["lr_scheduler"])
    if engine.training_dataloader is not None:
        engine.training_dataloader.resume(values["data"], values["epoch"])
    begin_round(engine, values["counters"])


def begin_round(engine: DeepSpeedEngine, counters: Mapping[str, int]) -> None:
    """The counters of a checkpoint. Gradients of before the load belong to other weights."""
    engine.zero_grad()
    engine.optimizer._accumulation.discard()
    engine._boundary.restore(**counters)
    engine.show_rates()
