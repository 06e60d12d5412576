"""Gradients that a script reads and writes between backward() and step(), by DeepSpeed's names.

Comes from: user code, as `from ballast.deepspeed.utils import safe_get_full_grad`. Goes to: the
engines that there are, torch.distributed. Thread safety: as ballast.torch.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from ballast.deepspeed import comm
from ballast.errors import at_border

if TYPE_CHECKING:
    from ballast.deepspeed.engine import DeepSpeedEngine

engines: weakref.WeakSet[DeepSpeedEngine] = weakref.WeakSet()  # those with an optimizer


def know(engine: DeepSpeedEngine) -> None:
    """Parameters of this engine's optimizer are found from now on, as long as it exists."""
    engines.add(engine)


@at_border
def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a parameter between backward() and step(), in fp32; None without one.

    It has the loss scale of fp16, as DeepSpeed's. In a round's last micro-batch it is the mean over
    the trainers: all of them call it, after init_distributed(), else it is Unsupported. Before that
    and in no_sync(), it is this trainer's own sum so far. A sum in fp32 is given before it is
    rounded to the parameter's dtype. Of a parameter in no engine: its own gradient.
    """
    engine = _engine_of(param)
    if engine is None or engine.optimizer is None:
        return param.grad
    gradient = engine.optimizer._accumulation.total(param)
    ends = not engine._no_sync and engine._boundary.is_boundary()
    return comm.mean_of(gradient, param) if ends and engine.world_size > 1 else gradient


@at_border
def safe_set_full_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Puts a gradient in the place of a parameter's, in its dtype, between backward() and step().

    All trainers give the same value, with the loss scale of fp16 in it, as in DeepSpeed. Of a
    parameter in no engine: only in place of an existing gradient.
    """
    engine = _engine_of(param)
    if engine is not None and engine.optimizer is not None:
        engine.optimizer._accumulation.forget(param)
    if param.grad is not None or engine is not None:
        param.grad = value.detach().to(param.device, param.dtype).reshape(param.shape).clone()


def _engine_of(param: torch.Tensor) -> DeepSpeedEngine | None:
    for engine in list(engines):
        groups = [] if engine.optimizer is None else engine.optimizer.param_groups
        if any(param is one for group in groups for one in group["params"]):
            return engine
    return None
