"""The loader of training_data: the parts of trainers, and an epoch that a checkpoint continues."""

from __future__ import annotations

import pytest
import torch
import ballast.deepspeed as deepspeed
from ballast import user_state
from ballast.deepspeed.loader import Loader
from ballast.errors import BadArgument
from ballast.torch.manifest import Manifest
from ballast.user_state import Place


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


def test_another_world_continues_after_the_same_samples():
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


def found(place, **named):
    one = loader(**named)
    one.follow(lambda: place)
    return one


def test_a_pass_begins_at_the_place_that_the_job_has():
    whole = rows(loader())
    one = found(Place(3, 8, 0))
    assert (one.epoch, one.position) == (3, 8)
    assert rows(one) == whole[8:]
    assert (one.epoch, one.position) == (4, 0)
    assert rows(one) == whole


def test_behind_the_last_sample_the_job_has_the_next_epoch():
    one = found(Place(3, 20, 0))
    assert (one.epoch, one.position) == (4, 0)
    assert rows(one) == rows(loader())


def test_a_new_job_begins_at_the_first_epoch():
    one = found(None)
    assert (one.epoch, one.position) == (0, 0)
    assert rows(one) == rows(loader())


def test_a_look_at_a_batch_without_a_round_moves_nothing():
    one = found(Place(1, 8, 0))
    next(iter(one))
    assert rows(one) == rows(loader())[8:]
    assert one.epoch == 2


def test_an_epoch_that_ends_after_a_round_counts():
    one = loader()
    next(iter(one))
    assert one.commit() == Place(0, 2, 0)
    running = iter(one)
    next(running)
    assert one.commit() == Place(1, 2, 0)


def test_another_order_is_refused_in_the_middle_of_an_epoch_only():
    one = found(Place(1, 8, 5))
    with pytest.raises(BadArgument, match=r"after 8 samples of epoch 1, .*set_epoch\(5\).*\(0\)"):
        next(iter(one))
    one.sampler.set_epoch(5)
    assert len(rows(one)) == 12
    one.sampler.set_epoch(6)
    assert len(rows(one)) == 20
    assert len(rows(found(Place(1, 20, 5)))) == 20


def engine(**more):
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(12, 4))
    made = deepspeed.initialize(model=torch.nn.Linear(4, 4), training_data=data, config={
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}, **more})  # fmt: skip
    return made[0], made[2]


def micro_batch(run, batch):
    run.backward(run(batch[0]).square().mean())
    run.step()


def test_a_round_commits_the_position_with_the_scripts_own_state(fake):
    run, data = engine()
    run.optimizer.user_state = {"mine": 1}
    for number, batch in zip(range(5), data):
        micro_batch(run, batch)
    assert number == 4
    sent = fake.last.user_state
    assert user_state.place_of(sent) == Place(0, 8, 0)
    assert user_state.decode(sent) == {"mine": 1} == run.optimizer.user_state


def test_without_training_data_a_round_commits_no_place(fake):
    run = deepspeed.initialize(model=torch.nn.Linear(4, 4), config={
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}})[0]  # fmt: skip
    micro_batch(run, [torch.ones(2, 4)])
    assert fake.last.round == 2 and fake.last.user_state == b""


@pytest.mark.parametrize("own", [None, b"\3", {"mine": 1}])
def test_a_process_that_is_started_again_continues_there(fake, monkeypatch, own):
    monkeypatch.setenv("BALLAST_RESUME", "auto")
    state = user_state.encode_place(user_state.encode(own), Place(2, 4, 0))
    fake.resumes = (7, 0.5, state)
    run, data = engine()
    assert len(fake.attached) == 1  # in initialize(), before anybody asks
    assert data.epoch == 2 and len(fake.attached) == 1
    assert run.optimizer.user_state == own
    assert len(rows_of(data)) == 4 and data.epoch == 3


def rows_of(batches):
    return [batch for (batch,) in batches]


def test_initialize_attaches_where_a_run_may_be_resumed(fake, monkeypatch):
    monkeypatch.setenv("BALLAST_RESUME", "auto")
    fake.resumes = (7, 0.5, b"")
    run, _ = engine()
    assert run.optimizer.resumed and run.module.weight[0, 0] == 0.5


def test_a_forward_pass_looks_at_no_parameter_of_the_job(fake, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    run, _ = engine()
    run(torch.ones(2, 4))
    looked, pending = [], Manifest.pending
    monkeypatch.setattr(
        Manifest, "pending", lambda *args: looked.append(1) or pending(*args))
    run(torch.ones(2, 4))
    assert looked == []
    late = torch.nn.Parameter(torch.ones(4), requires_grad=False)
    run.optimizer.add_param_group({"params": [("late", late)]})
    run(torch.ones(2, 4))
    assert looked == []
    late.requires_grad_(True)
    run(torch.ones(2, 4))
    assert looked and len(run.optimizer._membership.entries) == 3
