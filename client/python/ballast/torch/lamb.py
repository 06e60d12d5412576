"""LAMB whose master weights and moments live in Ballast servers.

Comes from: user code. Goes to: ballast.torch.service_optimizer.
Thread safety: used by one thread at a time; several optimizers may be used by several threads.
"""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import Unpack  # which torch needs

from ballast.config import JobOptions, spelled_out
from ballast.errors import BadHyperparam, at_border
from ballast.torch.kind import Array, Kind, Number
from ballast.torch.service_optimizer import ServiceOptimizer


class LambKind(Kind):
    """LAMB as a Kind; read() ends with max_coeff and min_coeff."""

    def __init__(self) -> None:
        super().__init__(
            name="LAMB",
            numbers=(
                Number("lr"),
                Number("betas", 0, top=1.0),
                Number("betas", 1, top=1.0),
                Number("eps"),
                Number("weight_decay"),
                Number("max_coeff"),
                Number("min_coeff"),
            ),
            fixed=("bias_correction",),
            state=(Array("exp_avg"), Array("exp_avg_sq")),
            in_torch=False,
            quirk="uncorrected_ratio",
        )

    def check_ranges(self, values: tuple[float, ...], where: str = "") -> None:
        """See Kind."""
        super().check_ranges(values, where)
        *_, most, least = values
        if most < least:
            raise BadHyperparam(f"{where}max_coeff={most!r}: must be at least min_coeff={least!r}")


class LAMB(ServiceOptimizer):
    """LAMB (You et al., "Large Batch Optimization for Deep Learning"), stepped by the service.

    A step is AdamW's, times a ratio per parameter: the norm of the weights over the norm of the
    update, between min_coeff and max_coeff; 1 where one of the norms is 0. The norms cover the
    whole parameter, across all servers that hold parts of it. bias_correction: as in Adam; the same
    for all groups. The numbers may change from round to round, and may differ between groups. The
    other arguments, and everything else, are as in ballast.torch.AdamW. export_state() gives per
    parameter step, master, exp_avg and exp_avg_sq, 12 bytes. torch has no LAMB.
    """

    _kind = LambKind()

    @at_border
    @spelled_out
    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        max_coeff: float = 10,
        min_coeff: float = 0.01,
        bias_correction: bool = True,
        *,
        model: torch.nn.Module | None = None,
        **job_options: Unpack[JobOptions],
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "max_coeff": max_coeff, "min_coeff": min_coeff, "bias_correction": bias_correction,
        }  # fmt: skip
        super().__init__(params, defaults, model, job_options)
