"""Adam whose master weights and moments live in Ballast servers.

Comes from: user code. Goes to: ballast.torch.service_optimizer.
Thread safety: used by one thread at a time; several optimizers may be used by several threads.
"""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import Unpack  # which torch needs

from ballast.config import JobOptions, spelled_out
from ballast.errors import at_border
from ballast.torch.adam_kind import AdamKind
from ballast.torch.service_optimizer import ServiceOptimizer


class Adam(ServiceOptimizer):
    """torch.optim.Adam, stepped by a sharded service; same formula, same hyper-parameters.

    weight_decay: Adam's, which is added to the gradient (L2). For the other one there is AdamW:
        decoupled_weight_decay=True with a decay is refused.
    The other arguments, and all else, are as ballast.torch.AdamW has them.
    """

    _kind = AdamKind("Adam")

    @at_border
    @spelled_out
    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        model: torch.nn.Module | None = None,
        **job_options: Unpack[JobOptions],
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "amsgrad": amsgrad, "maximize": maximize, "foreach": foreach, "fused": fused,
            "capturable": capturable, "differentiable": differentiable,
            "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults, model, job_options)
