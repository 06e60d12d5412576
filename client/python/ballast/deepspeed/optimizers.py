"""DeepSpeed's optimizer classes, as scripts make them: torch's, which initialize() takes over.

Comes from: scripts, as `from ballast.deepspeed.ops.adam import DeepSpeedCPUAdam`. Goes to:
torch.optim. An optimizer not given to initialize() has its state in the trainer.
Thread safety: as torch.optim.
"""

from __future__ import annotations

from typing import Any

import torch

import ballast.torch as bt
from ballast.deepspeed.basic_optimizer import Known
from ballast.deepspeed.local_optimizers import steps_in_fp32
from ballast.errors import Unsupported


def _adam(cls: type, params: Any, bias_correction: bool, decoupled: bool, **more: Any) -> Any:
    if not bias_correction:
        raise Unsupported(
            f"{cls.__name__}(bias_correction=False): leave it out; it is always corrected"
        )
    of = torch.optim.AdamW if decoupled else torch.optim.Adam
    return of(params, **more)


def _refuse_derived(cls: type, known: type) -> None:
    if cls is not known:
        raise Unsupported(
            f"{cls.__name__} derives from {known.__name__}, which gives an optimizer of torch: "
            f"what {cls.__name__} defines would not run; derive from torch's"
        )


class DeepSpeedCPUAdam(metaclass=Known):
    """Gives a torch.optim.AdamW, or Adam with adamw_mode=False, for initialize(optimizer=...).

    Arguments and defaults are DeepSpeed's. fp32_optimizer_states: outside of initialize(), 16-bit
    parameters step in fp32; the service always has fp32. Unsupported for bias_correction=False.
    """

    _service = bt.AdamW, bt.Adam

    def __new__(
        cls,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> Any:
        _refuse_derived(cls, DeepSpeedCPUAdam)
        made = _adam(
            cls, model_params, bias_correction, adamw_mode,
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
        )  # fmt: skip
        return steps_in_fp32(made) if fp32_optimizer_states else made


class FusedAdam(metaclass=Known):
    """As DeepSpeedCPUAdam; set_grad_none means nothing. Unsupported for amsgrad, as DeepSpeed's."""

    _service = bt.AdamW, bt.Adam

    def __new__(
        cls,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> Any:
        _refuse_derived(cls, FusedAdam)
        if amsgrad:
            raise Unsupported("FusedAdam(amsgrad=True): use DeepSpeedCPUAdam or torch.optim.AdamW")
        return _adam(
            cls, params, bias_correction, adam_w_mode,
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
        )  # fmt: skip


class DeepSpeedCPUAdagrad(metaclass=Known):
    """Gives a torch.optim.Adagrad for initialize(optimizer=...). Unsupported for amsgrad.

    fp32_optimizer_states: as DeepSpeedCPUAdam's.
    """

    _service = bt.Adagrad

    def __new__(
        cls,
        model_params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> Any:
        _refuse_derived(cls, DeepSpeedCPUAdagrad)
        if amsgrad:
            raise Unsupported("DeepSpeedCPUAdagrad(amsgrad=True): leave it out")
        made = torch.optim.Adagrad(model_params, lr=lr, eps=eps, weight_decay=weight_decay)
        return steps_in_fp32(made) if fp32_optimizer_states else made
