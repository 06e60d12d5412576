"""From a snapshot on the servers to an optimizer that continues from it, on all trainers.

Comes from: ballast.deepspeed.checkpoint and ballast.hf. Goes to: ballast.control, ballast.torch. A
fork of the snapshot is a job of its own; trainers leave the job they are in and take their seats in
the fork. The lowest rank makes it and tells the others its name: over torch.distributed where the
script has begun it, else through a file of the checkpoint's directory.
Thread safety: as the optimizer.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ballast import control
from ballast.errors import AttachTimeout, BallastError, warn
from ballast.launcher.servers import write_atomically
from ballast.torch.service_optimizer import ServiceOptimizer

_POLL_S = 0.2
_SUFFIX = re.compile(r"\.load-[0-9a-f]{8}\Z")
_STEM_MAX = 100  # of a job's name; with the suffix it stays below the servers' limit


@dataclasses.dataclass(frozen=True)
class Fork:
    """A job that begins with the state of a snapshot. round: rounds that it has finished then."""

    tag: str
    job: str
    round: int
    world: int


def control_of(optimizer: ServiceOptimizer) -> control.Control:
    """Commands to the servers of the optimizer's job."""
    return control.of(optimizer._membership.config)


def fork(optimizer: ServiceOptimizer, tag: str, job: str, snapshot: str, round: int) -> Fork:
    """Makes a fork of the snapshot, of as many trainers as the optimizer's job has.

    Its name is that of the optimizer's job with a suffix. Raises BallastError with the reason.
    """
    world = optimizer._membership.config.world_size
    stem = _SUFFIX.sub("", optimizer.job)[:_STEM_MAX]
    made = Fork(tag, f"{stem}.load-{secrets.token_hex(4)}", round, world)
    control_of(optimizer).fork(job, snapshot, made.job, world)
    return made


def agree(optimizer: ServiceOptimizer, make: Callable[[], Fork], path: str, tag: str) -> Fork:
    """The same fork on all trainers, which all call this.

    make: called on rank 0. path: the file through which it tells the others, without
    torch.distributed; a fork named there is reused until its first step. tag: the one that this
    trainer wants; "" takes rank 0's. Raises make()'s error on all trainers, with torch.distributed;
    without it the others get AttachTimeout.
    """
    if optimizer._membership.config.world_size == 1:
        return make()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return _broadcast(make)
    if optimizer.rank == 0:
        made = _usable(optimizer, path, tag) or make()
        write_atomically(Path(path), json.dumps(dataclasses.asdict(made)))
        return made
    return _awaited(optimizer, path, tag)


def join(optimizer: ServiceOptimizer, job: str) -> None:
    """Leaves the present job, if any, and attaches to the resting one named `job`.

    Afterwards the parameters hold its weights. Waits for the other trainers. Raises as attach().
    """
    left = optimizer.job
    with optimizer._turn:
        before = optimizer._membership
        if before.session is not None:
            before.leave()
        rates = optimizer._rounds.rates
        optimizer._prepare(dataclasses.replace(before.config, job=job, resume="must"))
        # The groups show the rates of a schedule; it knows those that they were made with.
        optimizer._rounds.rates = rates
        optimizer.attach()
    if optimizer.rank == 0 and left != job:
        _remove_left(optimizer, left)


def _remove_left(optimizer: ServiceOptimizer, left: str) -> None:
    """Deletes the jobs that earlier loads of this run have made, and that no trainer is in.

    `left`: the job that the optimizer was in. All trainers are in the new one by now, which is on
    the disks. The job with the run's own name stays: a script restarted with `resume` may continue
    it. Snapshots stay. Failing costs disk, no state.
    """
    stem = _SUFFIX.sub("", left)
    if len(stem) > _STEM_MAX:
        return  # Forks of another run may have the same name but for their suffix.
    ours = re.compile(re.escape(stem) + _SUFFIX.pattern)
    servers = control_of(optimizer)
    try:
        for found in servers.jobs():
            name = found["name"]
            if name != optimizer.job and ours.match(name) and _is_free(found, left):
                servers.delete_job(name)
    except BallastError as error:
        warn(f"a job that an earlier load has made stays on the servers: {error.message}")


def _is_free(found: dict[str, Any], left: str) -> bool:
    # A running job without trainers waits for some; an abandoned one does not.
    return found["state"] == "resting" or (found["name"] == left and not found["open_streams"])


def _usable(optimizer: ServiceOptimizer, path: str, tag: str) -> Fork | None:
    """The fork that the file names, if it is at the beginning and of this world's size."""
    try:
        with open(path, encoding="utf-8") as file:
            told = Fork(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None
    if tag not in ("", told.tag) or told.world != optimizer._membership.config.world_size:
        return None
    found = control_of(optimizer).job(told.job)
    # The servers count the next round.
    return told if found is not None and found["round"] == told.round + 1 else None


def _awaited(optimizer: ServiceOptimizer, path: str, tag: str) -> Fork:
    config = optimizer._membership.config
    deadline = time.monotonic() + config.attach_timeout * config.time_scale
    while (told := _usable(optimizer, path, tag)) is None:
        if time.monotonic() >= deadline:
            raise AttachTimeout(
                f"rank 0 made no job of the checkpoint within {config.attach_timeout:g} s: all "
                f"trainers must call the load, and see the same {os.path.dirname(path)}. A trainer "
                "that is started again alone cannot go back by itself; start all of them again",
                job=config.job,
                slot=config.rank,
            )
        time.sleep(_POLL_S)
    return told


def _broadcast(make: Callable[[], Fork]) -> Fork:
    distributed = torch.distributed
    error: BallastError | None = None
    said = b""
    if distributed.get_rank() == 0:
        try:
            said = json.dumps(dataclasses.asdict(make())).encode()
        except BallastError as failed:
            error, said = failed, json.dumps(failed.message).encode()
    length = torch.tensor([len(said)])
    distributed.broadcast(length, 0)
    content = torch.zeros(int(length), dtype=torch.uint8)
    if said:
        content.copy_(torch.frombuffer(bytearray(said), dtype=torch.uint8))
    distributed.broadcast(content, 0)
    if error is not None:
        raise error
    told: Any = json.loads(bytes(content.tolist()))
    if isinstance(told, str):
        raise BallastError(f"rank 0: {told}")
    return Fork(**told)
