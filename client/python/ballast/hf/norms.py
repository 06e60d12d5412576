"""The norm that Trainer logs of fp16 gradients, measured without changing them.

Where Trainer does not clip, it measures with clip_grad_norm_(parameters, inf). That sums fp16
gradients up in fp16. Multiplied by a loss scale, their norm is infinite long before one of them is,
and then all of them are multiplied by inf / inf: the round is skipped, and the scale is halved.

Comes from: ballast.hf.callback. Goes to: the class accelerate.Accelerator, between
on_train_begin and on_train_end. Thread safety: used by Trainer's thread.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import accelerate
import torch

_REAL = "_ballast_real"  # of the function that is in the place of Accelerate's


def spare_gradients() -> None:
    """Has Accelerate measure gradients of which some are fp16 in fp32; it changes none of them.

    For calls that do not clip (max_norm inf); all others are as before.
    """
    real = accelerate.Accelerator.clip_grad_norm_
    if hasattr(real, _REAL):
        return

    @functools.wraps(real)
    def clip_grad_norm_(self: Any, parameters: Any, max_norm: Any, norm_type: Any = 2) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        grads = [p.grad for p in parameters if p.grad is not None]
        if max_norm != math.inf or not any(g.dtype == torch.float16 for g in grads):
            return real(self, parameters, max_norm, norm_type)
        each = [torch.linalg.vector_norm(g, norm_type, dtype=torch.float32) for g in grads]
        here = each[0].device
        return torch.linalg.vector_norm(torch.stack([n.to(here) for n in each]), norm_type)

    setattr(clip_grad_norm_, _REAL, real)
    accelerate.Accelerator.clip_grad_norm_ = clip_grad_norm_


def undo() -> None:
    """Accelerate measures as it does by itself."""
    real = getattr(accelerate.Accelerator.clip_grad_norm_, _REAL, None)
    if real is not None:
        accelerate.Accelerator.clip_grad_norm_ = real
