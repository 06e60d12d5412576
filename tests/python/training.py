"""Two equal small models, one for our optimizer and one for torch's, and the loop that trains them.

Comes from: test_adamw.py and test_adamw_interface.py.
"""

import copy

import torch
from torch import nn


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(i):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(i))


def twins(make_ours, make_torch):
    """(ours, our optimizer), (torch's, its optimizer) on equal models."""
    ours = model()
    theirs = copy.deepcopy(ours)
    return (ours, make_ours(ours)), (theirs, make_torch(theirs))


def run(module, optimizer, steps, scheduler=None):
    for i in range(steps):
        optimizer.zero_grad()
        module(batch(i)).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def assert_equal(a, b):
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)
