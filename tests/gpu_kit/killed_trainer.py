"""Trainers of a job of two ranks, as processes of their own: rank 0 on the place is killed in each
phase of a round and started again; rank 1 on the host stays.

Comes from: order.py. Goes to: servers. Gradients depend on round and rank alone, so that a
disturbed job ends with the bits of a calm one. A trainer leaves its state in FOLDER/state-RANK.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import ballast.torch as bt
import torch
from torch import nn

from gpu_kit import faults, place, streams
from gpu_kit.twins import HYPER

BEFORE_PUSH, IN_PUSH, AWAITING, IN_PULL = PHASES = (
    "before the push", "in the push", "awaiting votes", "in the pull",
)  # fmt: skip
ROUNDS = 10
LOOK_S = 0.001


@dataclasses.dataclass(frozen=True)
class Seat:
    """strikes: by round, the phase in which rank 0 is killed; each is done once."""

    endpoints: list[str]
    job: str
    rank: int
    cpu: bool
    folder: Path
    strikes: dict[int, str]

    def struck(self, number: int) -> Path:
        """Is there once rank 0 has been killed in this round."""
        return self.folder / f"struck-{number}"


def train(seat: Seat) -> None:
    """To the end of the job, or until the process is killed."""
    torch.set_num_threads(1)
    model: nn.Module = streams.Tensors(40_000)
    where = None
    if seat.rank == 0:
        where = place.chosen(seat.cpu)
        if seat.strikes:
            faults.plant()
        where.put(model)
    opt = bt.AdamW(
        model.named_parameters(), job=seat.job, endpoints=seat.endpoints, rank=seat.rank,
        world_size=2, durability="process", resume="auto", extent_elements=8192,
        tile_elements=64, pinned_bytes=4 << 20, **HYPER,
    )  # fmt: skip
    opt.attach()
    while opt.round < ROUNDS:
        number = opt.round + 1
        fresh = streams.gradients(model, 2 * number + seat.rank)
        for p, gradient in zip(model.parameters(), fresh, strict=True):
            p.grad = gradient if where is None else where.put_tensor(gradient)
        phase = seat.strikes.get(number, "")
        if phase and not seat.struck(number).exists():
            strike(seat, number, phase, opt)
        opt.step()
    leave(seat, opt, model)


def strike(seat: Seat, number: int, phase: str, opt: bt.AdamW) -> None:
    """Prepares the kill of this round: of this process, in rank 0. Rank 1 holds its gradients back
    until then where rank 0 is to wait for them."""
    if seat.rank == 1:
        while phase == AWAITING and not seat.struck(number).exists():
            time.sleep(LOOK_S)
        return
    if phase != AWAITING:
        seat.struck(number).touch()
    if phase == BEFORE_PUSH:
        os.kill(os.getpid(), signal.SIGKILL)
    elif phase == IN_PUSH:
        # With 4 MiB pinned there are two buffers for gradients: four frames have left by then.
        faults.arm("kill_at=copy:6")
    elif phase == IN_PULL:
        faults.arm("kill_at=unpack:2")
    else:
        all_of = sum(p.nbytes for group in opt.param_groups for p in group["params"])
        pushed = opt.counters["payload_up_bytes"] + all_of
        threading.Thread(target=die_when, args=(seat, number, opt, pushed), daemon=True).start()


def die_when(seat: Seat, number: int, opt: bt.AdamW, pushed: int) -> None:
    """When all gradients are pushed. Rank 1's are not, so no weights have come."""
    while opt.counters["payload_up_bytes"] < pushed:
        time.sleep(LOOK_S)
    seat.struck(number).touch()
    os.kill(os.getpid(), signal.SIGKILL)


def leave(seat: Seat, opt: bt.AdamW, model: nn.Module) -> None:
    """Writes weights, masters and moments, whole or not at all."""
    state = {} if seat.rank else opt.export_state()["state"]
    weights = [p.detach().to("cpu") for p in model.parameters()]
    fresh = seat.folder / f"state-{seat.rank}.new"
    torch.save({"weights": weights, "state": state, "round": opt.round}, fresh)
    fresh.replace(fresh.with_suffix(""))
    opt.close()
