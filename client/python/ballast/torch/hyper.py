"""Hyper-parameters of torch param_groups as the service wants them: raw doubles, every round.

Comes from: ballast.torch.adamw, .wrap. Goes to: ballast.session. Pure functions.
Source: torch.optim.AdamW (2.13); the keys are those of its param_groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ballast.errors import BadHyperparam, Unsupported

# Options of torch.optim.AdamW that change the arithmetic or the calling contract.
_REFUSED = ("amsgrad", "maximize", "capturable", "differentiable")


def scalar(value: Any, what: str) -> float:
    """A Python float of a number or one-element tensor. BadHyperparam names `what` otherwise."""
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise BadHyperparam(f"{what}: a tensor of {value.numel()} elements; must have one")
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: odd tensors
        raise BadHyperparam(f"{what}={value!r}: must be a number") from None


def refuse_options(group: Mapping[str, Any], where: str) -> None:
    """Unsupported, by name, for options this version lacks; foreach and fused have no effect."""
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


def read(group: Mapping[str, Any], index: int) -> tuple[float, float, float, float, float]:
    """(lr, beta1, beta2, eps, weight_decay) of param_groups[index], as they are now.

    Ranges are the servers' to check (BAD_HYPERPARAM), equally for all slots.
    """
    where = f"param_groups[{index}]"
    refuse_options(group, where)
    try:
        beta1, beta2 = group["betas"]
    except (TypeError, ValueError):
        raise BadHyperparam(f"{where}: betas={group['betas']!r}: must be two numbers") from None
    return (
        scalar(group["lr"], f"{where}: lr"),
        scalar(beta1, f"{where}: betas[0]"),
        scalar(beta2, f"{where}: betas[1]"),
        scalar(group["eps"], f"{where}: eps"),
        scalar(group["weight_decay"], f"{where}: weight_decay"),
    )


def check_defaults(lr: Any, betas: Any, eps: Any, weight_decay: Any) -> None:
    """The checks of torch.optim.AdamW's constructor, as BadHyperparam (a ValueError)."""
    check_ranges(read({"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, 0))


def check_ranges(values: tuple[float, float, float, float, float], where: str = "") -> None:
    """BadHyperparam, with `where` in front, unless read()'s numbers are those of an AdamW."""
    names = ("lr", "betas[0]", "betas[1]", "eps", "weight_decay")
    for name, value in zip(names, values):
        top = 1.0 if name.startswith("betas") else math.inf
        if not 0.0 <= value < top:
            raise BadHyperparam(f"{where}{name}={value!r}: must be at least 0 and below {top}")
