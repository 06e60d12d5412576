"""The norm that Trainer logs of fp16 gradients, measured without changing them.

Where Trainer does not clip, it measures with clip_grad_norm_(parameters, inf). That sums fp16
gradients up in fp16. Multiplied by a loss scale, their norm is infinite long before one of them is,
and then all of them are multiplied by inf / inf: the round is skipped, and the scale is halved.

Comes from: ballast.hf.callback. Goes to: the class accelerate.Accelerator, between
on_train_begin and on_train_end; after an exception in train() until the optimizer is gone.
Gradients of other optimizers are measured as before. Thread safety: used by Trainer's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ballast.hf.replaced import Replaced


def spare_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Has Accelerate measure this optimizer's gradients in fp32, where some are fp16.

    It changes none of them then. For calls that do not clip (max_norm inf); all others are as
    before. Ends with undo(), or with the optimizer.
    """
    _spared.begin(optimizer)


def undo(optimizer: torch.optim.Optimizer) -> None:
    """Accelerate measures this optimizer's gradients as it does by itself."""
    _spared.end(optimizer)


def _measuring(real: Callable[..., Any]) -> Callable[..., Any]:
    def clip_grad_norm_(self: Any, parameters: Any, max_norm: Any, norm_type: Any = 2) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        grads = [p.grad for p in parameters if p.grad is not None]
        halves = max_norm == math.inf and any(g.dtype == torch.float16 for g in grads)
        if not halves or not _any_spared(parameters):
            return real(self, parameters, max_norm, norm_type)
        each = [torch.linalg.vector_norm(g, norm_type, dtype=torch.float32) for g in grads]
        here = each[0].device
        return torch.linalg.vector_norm(torch.stack([n.to(here) for n in each]), norm_type)

    return clip_grad_norm_


_spared = Replaced("clip_grad_norm_", _measuring)


def _any_spared(parameters: list[torch.Tensor]) -> bool:
    groups = [group for o in _spared.living() for group in o.param_groups]
    ours = {id(p) for group in groups for p in group["params"]}
    return any(id(p) in ours for p in parameters)
