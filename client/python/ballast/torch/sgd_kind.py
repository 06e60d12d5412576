"""The numbers, options and state arrays of SGD.

Comes from: ballast.torch.sgd. Goes to: users of ballast.torch.kind.Kind. Pure functions.
Source: torch.optim.SGD (2.13); the keys are those of its param_groups. torch counts no steps: a
parameter without a momentum_buffer takes its first gradient as the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ballast.errors import BadHyperparam, Unsupported
from ballast.torch.kind import Array, Kind, Number

_BUFFER = "momentum_buffer"


class SGDKind(Kind):
    """SGD as a Kind; read() gives (lr, momentum, dampening, weight_decay)."""

    def __init__(self) -> None:
        super().__init__(
            name="SGD",
            numbers=(
                Number("lr"),
                Number("momentum", top=1.0),
                Number("dampening", top=1.0),
                Number("weight_decay"),
            ),
            fixed=("nesterov", "maximize"),
            state=(Array(_BUFFER, needs="momentum", may_lack=True),),
            refused=("differentiable",),
        )

    def checked_defaults(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """See Kind."""
        checked = super().checked_defaults(defaults)
        if defaults["nesterov"] and (defaults["momentum"] <= 0 or defaults["dampening"] != 0):
            raise BadHyperparam("nesterov=True needs a momentum and no dampening")
        return checked

    def options(self, groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """See Kind; "momentum" is whether any group has some now."""
        has_momentum = any(group["momentum"] != 0 for group in groups)
        options = {**super().options(groups), "momentum": float(has_momentum)}
        if options["nesterov"] and not has_momentum:
            raise Unsupported("nesterov=True is not supported where no group has momentum")
        return options

    def refuse_new_values(
        self, before: tuple[float, ...], now: tuple[float, ...], index: int
    ) -> None:
        """See Kind; only torch knows which parameters have a buffer already."""
        if before[1] == 0 and now[1] != 0:
            raise Unsupported(
                f"param_groups[{index}]: momentum={now[1]!r} after a step with momentum=0 is not "
                "supported: give a group its momentum before its first step"
            )

    def saved_state(
        self, saved: Mapping[str, Any], arrays: tuple[str, ...], where: str
    ) -> Mapping[str, Any]:
        """See Kind; a buffer is of one step at least.

        Without one no step was taken with momentum, and the service copies the first gradient of
        a tensor whose step count is 0, as torch does.
        """
        super().saved_state(saved, arrays, where)
        if _BUFFER in arrays and saved.get(_BUFFER) is None:
            return {**saved, "step": 0.0}
        return {"step": float(_BUFFER in arrays), **saved}

    def torch_state(
        self, step: int, arrays: dict[str, torch.Tensor], group: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See Kind; a parameter without a step with momentum has no buffer in torch.

        The service does not count those. Without momentum it leaves a buffer unchanged, and a group
        takes momentum up in its first step or not at all: so it is one whose bits are all 0.
        """
        state = super().torch_state(step, arrays, group)
        if _BUFFER not in state:
            return state
        without = group["momentum"] == 0 and not state[_BUFFER].view(torch.int32).any()
        if step == 0 or without:
            state[_BUFFER] = None
        return state
