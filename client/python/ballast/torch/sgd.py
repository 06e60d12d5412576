"""SGD whose master weights and momentum live in Ballast servers.

Comes from: user code. Goes to: ballast.torch.service_optimizer.
Thread safety: used by one thread at a time; several optimizers may be used by several threads.
"""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import Unpack  # which torch needs

from ballast.config import JobOptions, spelled_out
from ballast.errors import at_border
from ballast.torch.service_optimizer import ServiceOptimizer
from ballast.torch.sgd_kind import SGDKind


class SGD(ServiceOptimizer):
    """torch.optim.SGD, stepped by a sharded service; same formula, same hyper-parameters.

    params: as torch's: tensors, (name, tensor) pairs or group dicts. fp32, bf16 and fp16 CPU
        parameters; for 16-bit ones the service keeps fp32 masters.
    lr, momentum, dampening, weight_decay: as torch's; read from param_groups at every step().
        Momentum and dampening are below 1.
    nesterov, maximize: as torch's, and equal in all groups.
    differentiable: refused unless False. foreach, fused: no effect.
    The other arguments are those of ballast.torch.AdamW.

    The job keeps a momentum_buffer, 4 bytes per parameter, if any group has momentum at the first
    step(), or attach(). A group whose momentum is 0 stays without: raising it after such a step is
    refused, until load_export(). export_state() gives per parameter step, master and
    momentum_buffer, which is None where no step was taken with momentum. load_export() takes one
    round per array, two where parameters have 16 bits, and also the state_dict() of a
    torch.optim.SGD, which counts no steps: `opt_step` is 1 then.
    Raises BadArgument, BadHyperparam (ValueErrors) and Unsupported at construction.
    """

    _kind = SGDKind()

    @at_border
    @spelled_out
    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | torch.Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        model: torch.nn.Module | None = None,
        **job_options: Unpack[JobOptions],
    ) -> None:
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults, model, job_options)
