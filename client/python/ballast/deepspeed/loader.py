"""The loader of training_data: this trainer's micro-batches, and the position in an epoch.

Comes from: ballast.deepspeed.initialize. Goes to: the script. Each round commits the place, from
which a restarted process continues; ballast.deepspeed.checkpoint keeps it, too.
Thread safety: as torch's DataLoader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ballast.errors import BadArgument
from ballast.user_state import Place

_ORDER_BITS = 2**63 - 1


class RepeatingLoader:
    """deepspeed.utils.RepeatingLoader: batches of a loader, which restarts at its end."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> RepeatingLoader:
        return self

    def __next__(self) -> Any:
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.loader)
            try:
                return next(self._batches)
            except StopIteration:
                self._batches = None
        raise StopIteration  # the loader is empty


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
    Of an IterableDataset the position is counted, and cannot be set.
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
        self._epoch = 0
        self._position = 0
        self._begin = 0  # of the next pass
        self._order: int | None = None  # that a pass which begins in the middle must have
        self._used = False  # a round has committed samples of the pass
        self._unit = micro * world
        self._found: Callable[[], Place | None] | None = None

    def follow(self, found: Callable[[], Place | None]) -> None:
        """The first look at the data begins where `found` says; None: at the beginning.

        found: called once, before the first batch, or when a property here is read.
        """
        self._found = found

    @property
    def epoch(self) -> int:
        """Epochs of the run before this one, those of the job that a process continues included.

        An epoch counts when it is over, or when a round has had samples of it and another begins.
        A loop that may be started again is `for epoch in range(loader.epoch, epochs)`.
        """
        self._find()
        return self._epoch

    @property
    def position(self) -> int:
        """Samples of all trainers that this epoch has given out; 0 between epochs."""
        self._find()
        return self._position

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._find()
        if self._used:
            self._end()
        self._position = self._begin
        if isinstance(self.sampler, _Sampler):
            self._check_order()
            self.sampler.start = self._position // self._unit * (self.batch_size or 1)
        for batch in super().__iter__():
            self._position += self._unit
            yield batch
        self._end()

    def commit(self) -> Place:
        """The data's present position, for a round with all batches handed out so far."""
        self._find()
        self._used = self._used or self._position > self._begin
        return Place(self._epoch, self._position, self._now_order())

    def resume(self, position: int, epoch: int = 0) -> None:
        """The next pass begins after `position` samples of all trainers, and is of number `epoch`.

        A pass without a sample in any round does not count: the next one begins there, too. If
        `position` is the end of the pass, the following one begins. Overrides the finding of
        follow().
        """
        self._found = self._order = None
        self._used = False
        whole = position // self._unit
        over = isinstance(self.sampler, _Sampler) and whole >= len(self)
        resumable = isinstance(self.sampler, _Sampler) and not over
        self._epoch = epoch + (over and position > 0)
        self._position = self._begin = whole * self._unit if resumable else 0

    def _end(self) -> None:
        self._epoch += 1
        self._position = self._begin = 0
        self._order = None
        self._used = False

    def _find(self) -> None:
        if self._found is None:
            return
        place = self._found()
        self._found = None
        if place is not None:
            self.resume(place.position, place.epoch)
            self._order = place.order if self._begin else None

    def _now_order(self) -> int:
        sampler = self.sampler
        return int(sampler.epoch) & _ORDER_BITS if isinstance(sampler, _Sampler) else 0

    def _check_order(self) -> None:
        if self._order in (None, self._now_order()):
            return
        raise BadArgument(
            f"training_data continues after {self._begin} samples of epoch {self._epoch}, which "
            f"the job began with set_epoch({self._order}), and the script has said "
            f"set_epoch({self._now_order()}); write `for epoch in range(loader.epoch, epochs)`"
        )
