"""The numbers, options and state arrays of AdamW.

Comes from: ballast.torch.adamw. Goes to: what takes a ballast.torch.kind.Kind. Pure functions.
Source: torch.optim.AdamW (2.13); the keys are those of its param_groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ballast.errors import BadHyperparam, Unsupported
from ballast.torch.kind import MASTER, scalar

_HYPER = ("lr", "betas", "eps", "weight_decay")
# Options of torch.optim.AdamW that change the arithmetic or the calling contract.
_REFUSED = ("amsgrad", "maximize", "capturable", "differentiable")


class AdamWKind:
    """AdamW as a Kind; read() gives (lr, beta1, beta2, eps, weight_decay)."""

    name = "AdamW"
    arrays = (MASTER, "exp_avg", "exp_avg_sq")

    def checked_defaults(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The checks of torch.optim.AdamW's constructor, as BadHyperparam (a ValueError)."""
        self.check_ranges(self.read({key: defaults[key] for key in _HYPER}, 0))
        return {**defaults, "betas": tuple(defaults["betas"])}

    def refuse_options(self, group: Mapping[str, Any], where: str) -> None:
        """See Kind; foreach and fused have no effect."""
        for option in _REFUSED:
            if group.get(option):
                raise Unsupported(
                    f"{where}: {option}={group[option]!r} is not supported by ballast.torch.AdamW"
                )
        if group.get("decoupled_weight_decay", True) is False and scalar(
            group.get("weight_decay", 0.0), f"{where}: weight_decay"
        ):
            raise Unsupported(
                f"{where}: weight_decay={group['weight_decay']!r} with Adam's L2 decay "
                "(decoupled_weight_decay=False) is not supported; AdamW's decay is"
            )

    def read(self, group: Mapping[str, Any], index: int) -> tuple[float, ...]:
        """See Kind. The servers check ranges (BAD_HYPERPARAM), equally for all slots."""
        where = f"param_groups[{index}]"
        self.refuse_options(group, where)
        try:
            beta1, beta2 = group["betas"]
        except (TypeError, ValueError):
            raise BadHyperparam(
                f"{where}: betas={group['betas']!r}: must be two numbers"
            ) from None
        return (
            scalar(group["lr"], f"{where}: lr"),
            scalar(beta1, f"{where}: betas[0]"),
            scalar(beta2, f"{where}: betas[1]"),
            scalar(group["eps"], f"{where}: eps"),
            scalar(group["weight_decay"], f"{where}: weight_decay"),
        )

    def check_ranges(self, values: tuple[float, ...], where: str = "") -> None:
        """See Kind; the ranges are those of torch.optim.AdamW."""
        names = ("lr", "betas[0]", "betas[1]", "eps", "weight_decay")
        for name, value in zip(names, values):
            top = 1.0 if name.startswith("betas") else math.inf
            if not 0.0 <= value < top:
                raise BadHyperparam(f"{where}{name}={value!r}: must be at least 0 and below {top}")

    def refuse_state(self, saved: Mapping[str, Any], where: str) -> None:
        """See Kind."""
        if "max_exp_avg_sq" in saved:
            raise Unsupported(
                f"{where} has max_exp_avg_sq: amsgrad is not supported by ballast.torch.AdamW"
            )
