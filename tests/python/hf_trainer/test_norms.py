"""The norm of fp16 gradients: no bit of them changes, and Accelerate's own function comes back."""

from __future__ import annotations

import gc
import math

import accelerate
import pytest
import torch
from ballast.hf import norms

REAL = accelerate.Accelerator.clip_grad_norm_


def halves():
    """An optimizer with one fp16 gradient, whose norm no fp16 can hold."""
    p = torch.nn.Parameter(torch.zeros(4, dtype=torch.float16))
    p.grad = torch.full((4,), 60000.0, dtype=torch.float16)
    return torch.optim.SGD([p], lr=0.1)


def measured(optimizer):
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = accelerate.Accelerator(cpu=True).clip_grad_norm_(parameters, math.inf)
    return float(norm), [p.grad for p in parameters]


@pytest.fixture(autouse=True)
def calm():
    yield
    assert accelerate.Accelerator.clip_grad_norm_ is REAL


def test_the_norm_is_measured_and_the_gradient_stays():
    ours, before = halves(), halves()
    norms.spare_gradients(ours)
    norm, (grad,) = measured(ours)
    assert norm == 120000.0
    assert torch.equal(grad, before.param_groups[0]["params"][0].grad)
    norms.undo(ours)


def test_other_optimizers_are_measured_as_before():
    ours, other = halves(), halves()
    norms.spare_gradients(ours)
    norm, (grad,) = measured(other)
    assert not math.isfinite(norm) and not torch.isfinite(grad).any()
    norms.undo(ours)


def test_two_runs_end_one_after_the_other():
    first, second = halves(), halves()
    norms.spare_gradients(first)
    norms.spare_gradients(second)
    norms.undo(first)
    assert measured(second)[0] == 120000.0
    assert not math.isfinite(measured(first)[0])
    norms.undo(second)


def test_after_an_exception_it_ends_with_the_optimizer():
    def train():
        ours = halves()
        norms.spare_gradients(ours)
        raise RuntimeError("a train() that fails calls no on_train_end()")

    with pytest.raises(RuntimeError):
        train()
    gc.collect()
    assert accelerate.Accelerator.clip_grad_norm_ is REAL
