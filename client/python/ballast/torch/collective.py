"""The process group of a job's trainers: its conditions, its ranks' agreement, and a lost rank.

Comes from: ballast.torch.membership, .shares. Goes to: torch.distributed. The group is the
script's: this module makes none and ends none. A group that lost a rank is stale forever.
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ballast import _rank_liveness, collective_option
from ballast.config import JobConfig
from ballast.errors import BadArgument, BallastError, LossScaleMismatch, TrainerLost, Unsupported
from ballast.rendezvous import Phase
from ballast.session import SLICE_S, Session

# torch has given both other names.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
# After a failed call, how long the present ranks wait for each other's message.
ROLL_CALL_S = 2.0
# A tensor's name and the type of its device.
Place = tuple[str, str]
_KINDS = ("cpu", "cuda", "another kind of device")


def _number(kind: str) -> int:
    # Of a kind of device, as the ranks tell it each other.
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS) - 1


def check(config: JobConfig) -> None:
    """BadArgument unless config.collective is a process group of just this job's trainers."""
    group = config.collective
    if group == collective_option.NCCL:
        return
    if not isinstance(group, dist.ProcessGroup):
        raise BadArgument(
            f"collective={group!r}: this process is not in that process group; make it of all "
            "trainers of the job, for example by torch.distributed.init_process_group('gloo')",
            job=config.job,
        )
    if group.size() != config.world_size or group.rank() != config.rank:
        raise BadArgument(
            f"collective= is a process group in which this process has rank {group.rank()} of "
            f"{group.size()}, but its seat in the job is rank {config.rank} of "
            f"{config.world_size}; give a group of all trainers, in the order of their ranks",
            job=config.job,
            slot=config.rank,
        )


def check_devices(config: JobConfig, tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Unsupported, naming the tensor, unless the process group takes tensors of each one's device.

    tensors: named. There is nothing to check where config.collective is no process group.
    """
    group: Any = config.collective
    if not isinstance(group, dist.ProcessGroup):
        return
    for name, tensor in tensors:
        try:
            group._get_backend(tensor.device)
        except RuntimeError:
            kind = tensor.device.type
            raise Unsupported(
                f"collective= is a process group without a backend for {kind}, and parameter "
                f"{name!r} is on {tensor.device}; name one for each kind of device: "
                'init_process_group("cpu:gloo,cuda:nccl")',
                job=config.job,
            ) from None


class Agreement:
    """The agreement of a job's ranks before a round, over any transport.

    timeout_s: how long a rank waits for the others. epoch: over whose members the next calls go.
    recovers: whether a later step can succeed in this process after TrainerLost.
    """

    recovers = False
    epoch = 0

    def __init__(self, config: JobConfig, session: Session, timeout_s: float) -> None:
        self.world = config.world_size
        self.rank = config.rank
        self.timeout_s = timeout_s
        self._config = config
        self._session = session

    def agree(self, present: list[bool], scale: float, places: Sequence[Place] = ()) -> list[bool]:
        """Per tensor: whether any rank has a gradient. Every rank calls it before a round.

        present: of this rank. scale: the factor on its gradients; LossScaleMismatch on all
        ranks when it differs. places: where its tensors are; BadArgument on all ranks, naming the
        tensor, when the kind of device differs: buckets are cut by device. Returns when this rank
        is in the newest epoch that any rank knows.
        """
        head = struct.pack("<qqd", self._session.round, self._session.epoch, scale)
        kinds = bytes(_number(kind) for _, kind in places)
        rows = self._everyones(head + kinds + bytes(present))
        heads = [struct.unpack("<qqd", row[: len(head)]) for row in rows]
        self._refuse_differences(heads)
        before = len(head) + len(kinds)
        self._refuse_other_devices([row[len(head) : before] for row in rows], places)
        self.epoch = max(epoch for _, epoch, _ in heads)
        self._enter(self.epoch)
        any_of = 0
        for row in rows:
            any_of |= int.from_bytes(row[before:], "little")
        return [bit != 0 for bit in any_of.to_bytes(len(present), "little")]

    def _everyones(self, mine: bytes) -> list[bytes]:
        """The ranks' inputs, all equally long, by rank. Raises TrainerLost."""
        raise NotImplementedError

    def _refuse_differences(self, heads: list[tuple[int, int, float]]) -> None:
        mine = heads[self.rank]
        for rank, (round, _, scale) in enumerate(heads):
            if round != mine[0]:
                raise BadArgument(
                    f"rank {rank} begins round {round + 1}, and this one, rank {self.rank}, round "
                    f"{mine[0] + 1}: all ranks call step() equally often, and continue from "
                    "opt.round",
                    job=self._config.job,
                    slot=rank,
                )
            if scale != mine[2]:
                raise LossScaleMismatch(
                    f"the gradients of rank {rank} are multiplied by {scale:g}, and those of rank "
                    f"{self.rank} by {mine[2]:g}; their sum would have no scale. Read "
                    "opt.loss_scale before each backward pass",
                    job=self._config.job,
                    slot=rank,
                )

    def _refuse_other_devices(self, everyones: list[bytes], places: Sequence[Place]) -> None:
        mine = everyones[self.rank]
        for rank, theirs in enumerate(everyones):
            if theirs == mine:
                continue
            at = next(i for i, (own, other) in enumerate(zip(mine, theirs)) if own != other)
            raise BadArgument(
                f"parameter {places[at][0]!r} is on {places[at][1]} at rank {self.rank}, and on "
                f"{_KINDS[theirs[at]]} at rank {rank}: the ranks would cut different buckets. Put "
                "it on the same kind of device on all ranks",
                job=self._config.job,
                slot=rank,
            )

    def _enter(self, epoch: int) -> None:
        # A rank that took its seat has made an epoch of which the others hear a moment later.
        deadline = time.monotonic() + self._config.attach_timeout * self._config.time_scale
        while self._session.epoch < epoch:
            self._session.check_open()
            if time.monotonic() >= deadline:
                raise TrainerLost(
                    f"this rank is in epoch {self._session.epoch}, and another in {epoch}: the "
                    "servers have not told this one",
                    job=self._config.job,
                )
            time.sleep(SLICE_S / 10)


class Collective(Agreement):
    """The calls of one trainer on its process group, with errors that name the missing part.

    group: kept for as long as this lives. Every call raises TrainerLost when a rank does not
    arrive within the group's own timeout, and again at once from then on.
    """

    def __init__(self, config: JobConfig, session: Session) -> None:
        self.group: Any = config.collective
        # The group's own; init_process_group(timeout=) sets it.
        options = self.group._get_backend(self._small_device()).options
        super().__init__(config, session, options._timeout.total_seconds())
        self._stale = ""  # why; empty: it is not
        self._epoch = session.epoch  # of the current call

    def _everyones(self, mine: bytes) -> list[bytes]:
        given = torch.tensor(list(mine), dtype=torch.uint8, device=self._small_device())
        everyones = given.new_empty(self.world * given.numel())
        with self.during("the agreement on the round", Phase.AGREEMENT):
            _all_gather(everyones, given, group=self.group)
        return [bytes(row.tolist()) for row in everyones.cpu().view(self.world, -1)]

    def reduce_scatter(self, share: torch.Tensor, bucket: torch.Tensor, number: int) -> None:
        """Sums `bucket` over the ranks; part `rank` of it goes to `share`. `bucket` may change."""
        with self.during(f"reduce-scatter of bucket {number}", Phase.REDUCE_SCATTER, number):
            _reduce_scatter(share, bucket, group=self.group)

    def all_gather(self, bucket: torch.Tensor, share: torch.Tensor, number: int) -> None:
        """Puts every rank's `share` into its part of `bucket`."""
        with self.during(f"all-gather of bucket {number}", Phase.ALL_GATHER, number):
            _all_gather(bucket, share, group=self.group)

    @contextlib.contextmanager
    def during(self, what: str, phase: Phase, number: int = 0) -> Iterator[None]:
        """Tells the home of a call on the group, and turns torch's error in it into TrainerLost."""
        if self._stale:
            raise TrainerLost(self._stale, job=self._config.job)
        applied = phase == Phase.ALL_GATHER
        round = self._session.round + (not applied)
        self._epoch = self._session.epoch
        self._session.set_doing(int(phase), number, round)
        began = time.monotonic()
        try:
            yield
        except BallastError:
            raise
        except RuntimeError as error:
            took = time.monotonic() - began
            raise self._lost(f"{what} of round {round}", took, applied, error) from error

    def _lost(self, where: str, took: float, applied: bool, error: Exception) -> TrainerLost:
        said = str(error).strip().splitlines()[0][:200]
        outcome = "The service has applied the round" if applied else "The round was not applied"
        absent = self._missing(where)
        found = _rank_liveness.look(self._session, self._epoch, absent or None)
        lost = collective_option.lost(
            found.ranks,
            self._epoch,
            took,
            "; ".join([where, f"torch says: {said}", *found.notes]),
            f"{outcome}; nothing is lost",
        )
        self._stale = lost.message
        return lost

    def _missing(self, where: str) -> list[int]:
        # A roll call over the group's store: every failed rank says where. [] where the store is
        # gone, too: its rank may be the lost one.
        names = {
            rank: f"ballast/{self._config.job}/{self._epoch}/{rank}" for rank in range(self.world)
        }
        try:
            store = self.group.get_group_store()
            store.set(names[self.rank], where)
            deadline = time.monotonic() + ROLL_CALL_S * self._config.time_scale
            while True:
                absent = [rank for rank, name in names.items() if not store.check([name])]
                if not absent or time.monotonic() >= deadline:
                    return absent
                time.sleep(SLICE_S / 10)
        except (RuntimeError, AttributeError):
            return []

    def _small_device(self) -> torch.device:
        # gloo has a CPU backend; NCCL alone has not.
        types = {device.type for device in self.group._device_types}
        return torch.device("cpu" if "cpu" in types or not types else types.pop())
