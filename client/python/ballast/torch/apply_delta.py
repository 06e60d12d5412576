"""Master weights in Ballast servers, for updates that the script computes itself.

Comes from: user code. Goes to: ballast.torch.service_optimizer.
Thread safety: used by one thread at a time; several optimizers may be used by several threads.
"""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import Unpack  # which torch needs

from ballast.config import JobOptions, spelled_out
from ballast.errors import at_border
from ballast.torch.kind import Kind, Number
from ballast.torch.service_optimizer import ServiceOptimizer


class ApplyDelta(ServiceOptimizer):
    """Steps p = p * (1 - lr * weight_decay) - lr * u, where u is what .grad holds.

    For optimizers that this version does not have: the script computes the update of a step from
    its gradients and puts it into .grad before step(). The service averages the updates of all
    trainers and keeps the fp32 masters; state of the script's own optimizer is the script's.
    The other arguments, and all else, are as ballast.torch.AdamW has them. export_state() gives per
    parameter step and master, 4 bytes.
    """

    _kind = Kind(
        name="ApplyDelta",
        numbers=(Number("lr"), Number("weight_decay")),
        service="apply_delta",
        in_torch=False,
    )

    @at_border
    @spelled_out
    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1.0,
        weight_decay: float = 0,
        *,
        model: torch.nn.Module | None = None,
        **job_options: Unpack[JobOptions],
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay}, model, job_options)
