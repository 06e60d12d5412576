"""Adagrad whose master weights and sums live in Ballast servers.

Comes from: user code. Goes to: ballast.torch.service_optimizer.
Thread safety: used by one thread at a time; several optimizers may be used by several threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from typing_extensions import Unpack  # which torch needs

from ballast.config import JobOptions, spelled_out
from ballast.errors import BadHyperparam, at_border
from ballast.torch.kind import Array, Kind, Number
from ballast.torch.service_optimizer import ServiceOptimizer


class AdagradKind(Kind):
    """Adagrad as a Kind; read() gives (lr, lr_decay, weight_decay, eps)."""

    def __init__(self) -> None:
        super().__init__(
            name="Adagrad",
            numbers=(
                Number("lr"), Number("lr_decay"), Number("weight_decay"), Number("eps"),
            ),  # fmt: skip
            fixed=("initial_accumulator_value", "maximize"),
            state=(Array("sum", initial="initial_accumulator_value"),),
            refused=("differentiable",),
            quirk="raw_numerator",
        )

    def checked_defaults(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """See Kind."""
        value = defaults["initial_accumulator_value"]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0.0 <= value <= torch.finfo(torch.float32).max:
            raise BadHyperparam(
                f"initial_accumulator_value={value!r}: must be a number from 0 to 3.4e38, the "
                "largest of fp32; 0 is the default"
            )
        return super().checked_defaults(defaults)


class Adagrad(ServiceOptimizer):
    """torch.optim.Adagrad, stepped by a sharded service; same formula, same hyper-parameters.

    lr, lr_decay, weight_decay, eps: as torch's; read from param_groups at every step().
    initial_accumulator_value, maximize: as torch's, and equal in all groups.
    differentiable: refused unless False. foreach, fused: no effect.
    The other arguments, and all else, are as ballast.torch.AdamW has them. export_state() gives per
    parameter step, master and sum, 8 bytes.
    """

    _kind = AdagradKind()

    @at_border
    @spelled_out
    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        model: torch.nn.Module | None = None,
        **job_options: Unpack[JobOptions],
    ) -> None:
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults, model, job_options)
