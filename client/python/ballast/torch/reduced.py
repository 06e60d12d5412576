"""Finds out whether gradients are equal on all trainers already: the model is in DDP.

A model is wrapped after its optimizer was built (Accelerate, Trainer), and parameters bear no mark
of it. So this looks for a live DistributedDataParallel that holds them, once, at the attach: one
pass over Python's objects.
Comes from: ballast.torch.membership and rounds. Goes to: nothing. Thread safety: pure, but for
reading what torch.distributed is.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch.nn.parallel import DistributedDataParallel


def by_ddp(parameters: Iterable[torch.nn.Parameter], world_size: int) -> bool:
    """Whether DDP averages the gradients of all `parameters` over just the job's trainers."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return False
    wanted = {id(p) for p in parameters}
    return any(
        wanted <= _averaged(found) and distributed.get_world_size(found.process_group) == world_size
        for found in gc.get_objects()
        # isinstance() would ask objects for their class, and lazy ones would load something.
        if issubclass(type(found), DistributedDataParallel)
    )


def _averaged(wrapper: DistributedDataParallel) -> set[int]:
    ignored = wrapper.parameters_to_ignore
    named = wrapper.module.named_parameters(remove_duplicate=False)
    return {id(p) for name, p in named if name not in ignored}
