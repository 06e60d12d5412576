"""What sets one kind of optimizer apart from the others: its numbers, options and state arrays.

Comes from: ballast.torch.adamw and modules like it, one Kind each. Goes to: service_optimizer,
rounds, load, files, export, which know no kind by name. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ballast.errors import BadHyperparam

MASTER = "master"  # The state array that every kind has: the weights in fp32.


class Kind(Protocol):
    """One kind of optimizer. Immutable.

    name: of its class in ballast.torch and in torch.optim, for error texts.
    arrays: the names of its state arrays in the service's order, MASTER first; the others have
        torch's names.
    """

    name: str
    arrays: tuple[str, ...]

    def checked_defaults(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the constructor as `Optimizer.defaults`; BadHyperparam as torch does."""

    def refuse_options(self, group: Mapping[str, Any], where: str) -> None:
        """Unsupported, naming `where` and the option, for options that this version lacks."""

    def read(self, group: Mapping[str, Any], index: int) -> tuple[float, ...]:
        """The hyper-parameters of param_groups[index] as they are now, in the wire's order.

        Raises BadHyperparam for what is no number, and Unsupported as refuse_options().
        """

    def check_ranges(self, values: tuple[float, ...], where: str = "") -> None:
        """BadHyperparam, with `where` in front, unless read()'s numbers are in their ranges."""

    def refuse_state(self, saved: Mapping[str, Any], where: str) -> None:
        """Unsupported, naming `where`, for a parameter's state that options it lacks have made."""


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
