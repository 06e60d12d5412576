"""clip_grad_norm_ before step() in a job of several trainers: noticed and warned of, once."""

import warnings

import ballast.torch as bt
import pytest
import torch
from ballast.torch.local_clip import LocalClipWatch
from torch import nn

JOB = {"endpoints": "a:1", "job": "job"}


def small_model(dtype):
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(dtype)


def backward(model, rows, scale=1.0):
    model.zero_grad()
    x = torch.randn(rows, 16).to(model[0].weight.dtype)
    (model(x).float() - x[:, :4].float()).square().mean().mul(scale).backward()


def seen(dtype, max_norm, seed, rows=8):
    """The round at which a watch says so while a model trains; 0 for never."""
    torch.manual_seed(seed)
    model = small_model(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = LocalClipWatch()
    for i in range(1, 30):
        backward(model, rows)
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if watch.saw([p.grad for p in model.parameters()]):
            return i
        optimizer.step()
    return 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_clipped_gradients_are_noticed_and_others_are_not(dtype):
    for seed in range(8):
        assert 3 <= seen(dtype, 0.01, seed) <= 20
        for rows in (4, 64, 1024):
            assert seen(dtype, 0.0, seed, rows) == 0


def test_the_same_gradient_again_is_not_a_clipped_one():
    watch = LocalClipWatch()
    assert not any(watch.saw([torch.ones(8), torch.full((4,), 2.0)]) for _ in range(30))
    watch = LocalClipWatch()
    assert not any(watch.saw([torch.zeros(8), torch.zeros(4)]) for _ in range(30))
    assert not LocalClipWatch().saw([])


def test_gradients_that_are_not_finite_or_come_and_go_begin_anew():
    torch.manual_seed(0)
    watch = LocalClipWatch()

    def clipped(tensors):
        gradients = [torch.randn(50) for _ in range(tensors)]
        norm = torch.cat(gradients).norm()
        return [g / norm for g in gradients]

    assert not any(watch.saw(clipped(3)) for _ in range(2))
    assert not watch.saw([torch.full((50,), torch.nan)] * 3)
    assert not any(watch.saw(clipped(3)) for _ in range(2))
    assert not any(watch.saw(clipped(2)) for _ in range(2))
    assert watch.saw(clipped(2))
    assert not any(watch.saw(clipped(2)) for _ in range(5))


def warned(fake, rounds=6, **arguments):
    torch.manual_seed(0)
    model = small_model(torch.float32)
    opt = bt.AdamW(model.named_parameters(), **JOB, **arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(rounds):
            backward(model, 8, opt.loss_scale)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            opt.step()
    return caught


def test_it_is_said_once_at_the_line_of_the_script(fake):
    caught = warned(fake, world_size=2, rank=0)
    assert [w.filename for w in caught] == [__file__]
    assert "clip_grad_norm_" in str(caught[0].message)
    assert "max_grad_norm=" in str(caught[0].message)


@pytest.mark.parametrize("scale", [8.0, "dynamic"])
def test_with_a_loss_scale_it_is_said_to_one_trainer_as_well(fake, scale):
    caught = warned(fake, world_size=1, loss_scale=scale)
    assert len(caught) == 1
    assert "still multiplied by the loss scale" in str(caught[0].message)


def test_one_trainer_and_the_global_clip_are_not_warned_of(fake):
    assert warned(fake, world_size=1) == []
    assert warned(fake, world_size=2, rank=0, max_grad_norm=1.0) == []
