"""Gradients to the one rank that pushes them, and stepped weights to all ranks: bucket by bucket.

    gradients of all ranks --reduce-scatter--> this rank's share --push--> servers
    servers --> weights of this rank's share --all-gather--> parameters of all ranks

A bucket is `world` extents of one group and dtype that follow each other in push order, the last
bucket of them padded: part r is dealt to rank r. Where their tensors lie on the CPU and on a GPU,
each device has a bucket with its pieces of them. Gradients are summed in their own dtype; nothing
is divided here, the servers divide by the world and by the loss scale. A rank's own gradients stay
unchanged. See docs/collectives.md.
Comes from: ballast.torch.rounds. Goes to: ballast.torch.collective, ballast.session.
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from ballast import collective_option
from ballast.errors import BallastError, TrainerLost, warn
from ballast.rendezvous import Phase
from ballast.session import Session
from ballast.torch import buffers
from ballast.torch.collective import Collective
from ballast.torch.manifest import Entry
from ballast.torch.nccl import Nccl

# (tensor number, first element, elements)
Piece = tuple[int, int, int]
# (address or 0, owner of the memory), as buffers.gradient().
Lent = tuple[int, "torch.Tensor | None"]


@dataclasses.dataclass
class Bucket:
    """parts: per rank, the pieces of its extent, all on one device.

    elements: of the longest part, the padding's.
    """

    parts: list[list[Piece]]
    elements: int

    def tensors(self) -> set[int]:
        return {tensor for part in self.parts for tensor, _, _ in part}


class Shares:
    """The buckets of a job, and the memory of this rank's share of the sums.

    That memory has the address space of the tensors that the share touches, of which the share
    itself is used.
    """

    def __init__(self, collective: Collective | Nccl, session: Session) -> None:
        self._collective = collective
        self._session = session
        self._tensors = 0  # for which _buckets holds
        self._buckets: list[Bucket] = []
        self._sums: dict[int, torch.Tensor] = {}  # per tensor that the share touches, flat
        self._staging: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    @property
    def epoch(self) -> int:
        """Over whose members the newest reduce() has summed."""
        return self._collective.epoch

    def refuse_stale(self, error: BallastError) -> None:
        """After a step whose sums were of an ended epoch: raises `error`, with the next step, and
        ends the session, where the collective cannot sum over the new members."""
        if self._collective.recovers:
            return
        self._session.abandon("its process group is stale")
        raise BallastError(
            f"{error.message}. {collective_option.NEW_GROUP}",
            code=error.code, reason=error.reason, job=error.job, round=error.round,
        ) from None  # fmt: skip

    def reduce(self, entries: list[Entry], lent: list[Lent], scale: float) -> list[Lent]:
        """This rank's share of the sums, lent in place of `lent`, its own gradients.

        A tensor without a gradient on some rank counts there as zeros; one without on all ranks has
        none. scale: the factor on the gradients. Every rank calls it before each round.
        Raises as Collective.
        """
        places = [(entry.name, entry.device.type) for entry in entries]
        present = self._collective.agree([address != 0 for address, _ in lent], scale, places)
        self._cut(entries)
        for number, bucket in enumerate(self._buckets):
            if any(present[tensor] for tensor in bucket.tensors()):
                self._sum(number, bucket, entries, lent)
        # A rank lost from here on is named with its push, not with its last bucket.
        self._session.set_doing(int(Phase.PUSH), 0, self._session.round + 1)
        return [self._lend(i, e, lent[i]) if present[i] else (0, None)
                for i, e in enumerate(entries)]  # fmt: skip

    def gather(self, entries: list[Entry], lent: list[Lent]) -> None:
        """Brings the weights that other ranks have received into this rank's weights.

        lent: what reduce() has returned for the round, which the service has applied. Where a rank
        is lost and the collective recovers, all weights come from the service instead.
        """
        try:
            self._gather(entries, lent)
        except TrainerLost as lost:
            if not self._collective.recovers:
                raise
            warn(f"{lost.message.split('. This rank')[0]}: this rank fetches all weights")
            weights = [buffers.weight_address(e) for e in entries]
            self._session.fetch_weights(weights, keep=entries)

    def _gather(self, entries: list[Entry], lent: list[Lent]) -> None:
        rank = self._collective.rank
        for number, bucket in enumerate(self._buckets):
            if not any(lent[tensor][0] for tensor in bucket.tensors()):
                continue
            everyones, mine = self._stage(bucket, entries)
            _pack(mine, [_weight(entries[t])[a : a + n] for t, a, n in bucket.parts[rank]])
            self._collective.all_gather(everyones, mine, number)
            for other, part in enumerate(bucket.parts):
                if other == rank:
                    continue
                received = everyones[other * bucket.elements :]
                _unpack(received, [_weight(entries[t])[a : a + n] for t, a, n in part])
                for tensor, _, elements in part:
                    entry = entries[tensor]
                    entry.copied_down += elements * entry.dtype.itemsize

    def _sum(
        self, number: int, bucket: Bucket, entries: list[Entry], lent: Sequence[Lent]
    ) -> None:
        everyones, mine = self._stage(bucket, entries)
        for rank, part in enumerate(bucket.parts):
            place = everyones[rank * bucket.elements :]
            at = 0
            for tensor, first, elements in part:
                _, grad = lent[tensor]
                if grad is None:
                    place[at : at + elements].zero_()
                else:
                    place[at : at + elements].copy_(grad.reshape(-1)[first : first + elements])
                    entries[tensor].copied_up += elements * grad.element_size()
                at += elements
        self._collective.reduce_scatter(mine, everyones, number)
        own = bucket.parts[self._collective.rank]
        _unpack(mine, [self._sum_of(t, entries[t])[a : a + n] for t, a, n in own])

    def _lend(self, tensor: int, entry: Entry, own: Lent) -> Lent:
        sums = self._sums.get(tensor)
        if sums is not None:
            return sums.data_ptr(), sums
        # Nothing of it is in the share, so nothing of it is read.
        return own if own[0] else (buffers.weight_address(entry), None)

    def _sum_of(self, tensor: int, entry: Entry) -> torch.Tensor:
        if tensor not in self._sums:
            self._sums[tensor] = torch.empty(
                entry.shape.numel(), dtype=entry.dtype, device=entry.device
            )
        return self._sums[tensor]

    def _stage(self, bucket: Bucket, entries: list[Entry]) -> tuple[torch.Tensor, torch.Tensor]:
        # Memory of a bucket, and of one part of it; the same for all buckets of a dtype.
        entry = entries[next(iter(bucket.tensors()))]
        world = self._collective.world
        needed = (world + 1) * bucket.elements
        key = (entry.dtype, entry.device)
        held = self._staging.get(key)
        if held is None or held.numel() < needed:
            held = torch.zeros(needed, dtype=entry.dtype, device=entry.device)
            self._staging[key] = held
        return held[: world * bucket.elements], held[world * bucket.elements : needed]

    def _cut(self, entries: list[Entry]) -> None:
        # Once, and again when the job has grown. The deal depends on the members' ranks alone.
        if self._tensors == len(entries):
            return
        # The service deals within a group and dtype, whatever the device.
        spaces: dict[tuple[int, torch.dtype], list[tuple[int, list[Piece]]]] = {}
        for group, rank, pieces in self._session.dealt():
            spaces.setdefault((group, entries[pieces[0][0]].dtype), []).append((rank, pieces))
        world = self._collective.world
        self._buckets = [
            bucket
            for extents in spaces.values()
            for i in range(0, len(extents), world)
            for bucket in _buckets(extents[i : i + world], world, entries)
        ]
        self._sums.clear()
        self._tensors = len(entries)


def _buckets(
    dealt: list[tuple[int, list[Piece]]], world: int, entries: list[Entry]
) -> list[Bucket]:
    # Of (rank, pieces) of `world` extents at most: one per device with pieces of them.
    places: dict[torch.device, list[list[Piece]]] = {}
    for rank, pieces in dealt:
        for piece in pieces:
            device = entries[piece[0]].device
            places.setdefault(device, [[] for _ in range(world)])[rank].append(piece)
    return [
        Bucket(parts, max(sum(n for _, _, n in part) for part in parts))
        for parts in places.values()
    ]


def _weight(entry: Entry) -> torch.Tensor:
    # The memory that buffers.weight_address() names, flat.
    held = entry.param if entry.weight_copy is None else entry.weight_copy
    return held.detach().reshape(-1)


def _pack(to: torch.Tensor, pieces: list[torch.Tensor]) -> None:
    at = 0
    for piece in pieces:
        to[at : at + piece.numel()].copy_(piece)
        at += piece.numel()


def _unpack(of: torch.Tensor, pieces: list[torch.Tensor]) -> None:
    at = 0
    for piece in pieces:
        piece.copy_(of[at : at + piece.numel()])
        at += piece.numel()
