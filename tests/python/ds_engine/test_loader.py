"""The loader of training_data: the parts of trainers, and an epoch that a checkpoint continues."""

from __future__ import annotations

import pytest
import torch
from ballast.deepspeed.loader import Loader


def loader(micro=2, world=1, rank=0, count=20):
    data = torch.utils.data.TensorDataset(torch.arange(count))
    return Loader(data, micro, world, rank, None, False)


def rows(batches):
    return [int(i) for (batch,) in batches for i in batch]


def test_an_epoch_continues_where_the_checkpoint_was_taken():
    whole = rows(loader())
    first = loader()
    running = iter(first)
    seen = rows([next(running) for _ in range(4)])
    assert first.position == 8
    second = loader()
    second.resume(first.position)
    assert second.position == 8
    assert seen + rows(second) == whole
    assert second.position == 0
    assert rows(second) == whole  # the epoch after it is whole again


def test_an_epoch_that_the_script_leaves_begins_anew():
    one = loader()
    for _ in one:
        break
    assert one.position == 2
    assert rows(one) == rows(loader())


@pytest.mark.parametrize("position", [20, 21, 40])
def test_behind_the_last_sample_an_epoch_begins(position):
    one = loader()
    one.resume(position)
    assert rows(one) == rows(loader())


def test_another_world_continues_behind_the_same_samples():
    pair = [iter(loader(world=2, rank=rank)) for rank in range(2)]
    seen = [i for one in pair for i in rows([next(one), next(one)])]
    alone = loader()
    alone.resume(8)
    assert sorted(seen + rows(alone)) == list(range(20))


def test_an_iterable_dataset_begins_at_its_own_beginning():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(6))

    one = Loader(Stream(), 2, 1, 0, None, False)
    one.resume(4)
    assert [batch.tolist() for batch in one] == [[0, 1], [2, 3], [4, 5]]
