"""The loader of training_data: this trainer's micro-batches, and where an epoch stands.

Comes from: ballast.deepspeed.initialize. Goes to: the script; ballast.deepspeed.checkpoint keeps
the position. Thread safety: as torch's DataLoader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class _Sampler(DistributedSampler[Any]):
    """This trainer's part of the data, from sample `start` of it on."""

    start = 0

    def __iter__(self) -> Iterator[Any]:
        indices = list(super().__iter__())
        first, self.start = self.start, 0
        return iter(indices[first:])


class Loader(DataLoader[Any]):
    """A DataLoader that knows how far its epoch is, and can begin one there.

    Each epoch has the same order, as DeepSpeed's has, until the script calls sampler.set_epoch().
    position: samples of all trainers that this epoch has given out; 0 between epochs. Of an
    IterableDataset it is counted, and cannot be set.
    """

    def __init__(
        self,
        data: Dataset[Any],
        micro: int,
        world: int,
        rank: int,
        collate: Callable[[list[Any]], Any] | None,
        drop_last: bool,
    ) -> None:
        iterable = isinstance(data, torch.utils.data.IterableDataset)
        sampler = None if iterable else _Sampler(data, num_replicas=world, rank=rank)
        super().__init__(
            data, batch_size=micro, sampler=sampler, collate_fn=collate, drop_last=drop_last
        )
        self.position = 0
        self._begin = 0  # of the next epoch
        self._unit = micro * world

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.position, self._begin = self._begin, 0
        if isinstance(self.sampler, _Sampler):
            self.sampler.start = self.position // self._unit * (self.batch_size or 1)
        for batch in super().__iter__():
            self.position += self._unit
            yield batch
        self.position = 0

    def resume(self, position: int) -> None:
        """The next epoch, and only it, begins behind `position` samples of all trainers.

        It begins anew when that is all of them.
        """
        whole = position // self._unit
        resumable = isinstance(self.sampler, _Sampler) and whole < len(self)
        self.position = self._begin = whole * self._unit if resumable else 0
