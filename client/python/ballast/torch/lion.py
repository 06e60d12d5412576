"""Lion whose master weights and momentum live in Ballast servers.

Comes from: user code. Goes to: ballast.torch.service_optimizer.
Thread safety: used by one thread at a time; several optimizers may be used by several threads.
"""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import Unpack  # which torch needs

from ballast.config import JobOptions, spelled_out
from ballast.errors import at_border
from ballast.torch.kind import Array, Kind, Number
from ballast.torch.service_optimizer import ServiceOptimizer


class Lion(ServiceOptimizer):
    """Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms"), stepped by the service.

    A step moves each weight by lr against the sign of an average of gradients, and decays it by
    lr * weight_decay as AdamW does. So lr is smaller than AdamW's, usually by 3 to 10.
    The other arguments, and all else, are as ballast.torch.AdamW has them. export_state() gives per
    parameter step, master and exp_avg, 8 bytes. torch has no Lion.
    """

    _kind = Kind(
        name="Lion",
        numbers=(
            Number("lr"),
            Number("betas", 0, top=1.0),
            Number("betas", 1, top=1.0),
            Number("weight_decay"),
        ),
        state=(Array("exp_avg"),),
        in_torch=False,
        quirk="moves_at_zero",
    )

    @at_border
    @spelled_out
    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        *,
        model: torch.nn.Module | None = None,
        **job_options: Unpack[JobOptions],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, defaults, model, job_options)
