"""The numbers, options and state arrays of AdamW and Adam.

Comes from: ballast.torch.adamw, ballast.torch.adam. Goes to: users of ballast.torch.kind.Kind.
Pure functions. Source: torch.optim.AdamW and Adam (2.13); the keys are those of their param_groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast.errors import BadArgument, Unsupported
from ballast.torch.kind import ONLY_WEIGHTS, Array, Kind, Number, scalar

_DECOUPLED = "decoupled_weight_decay"  # True in AdamW's groups, as in torch.


class AdamKind(Kind):
    """AdamW or Adam as a Kind; read() gives (lr, beta1, beta2, eps, weight_decay)."""

    def __init__(self, name: str) -> None:
        super().__init__(
            name=name,
            numbers=(
                Number("lr"),
                Number("betas", 0, top=1.0),
                Number("betas", 1, top=1.0),
                Number("eps"),
                Number("weight_decay"),
            ),
            fixed=("amsgrad", "maximize"),
            state=(
                Array("exp_avg"),
                Array("exp_avg_sq"),
                Array("max_exp_avg_sq", needs="amsgrad"),
            ),
            refused=("capturable", "differentiable"),  # They change the calling contract.
        )

    def refuse_options(self, group: Mapping[str, Any], where: str) -> None:
        """See Kind; foreach and fused have no effect."""
        super().refuse_options(group, where)
        decoupled = self.name == "AdamW"
        theirs = group.get(_DECOUPLED, decoupled)
        if bool(theirs) != decoupled and scalar(
            group.get("weight_decay", 0.0), f"{where}: weight_decay"
        ):
            decay = "AdamW's decay" if theirs else "Adam's L2 decay"
            raise Unsupported(
                f"{where}: weight_decay={group['weight_decay']!r} with {decay} "
                f"(decoupled_weight_decay={bool(theirs)}) is not supported by "
                f"ballast.torch.{self.name}"
            )

    def refuse_other_kind(
        self, group: Mapping[str, Any], ours: Mapping[str, Any], where: str
    ) -> None:
        """See Kind; torch's groups say whether the decay is AdamW's. Older ones do not."""
        super().refuse_other_kind(group, ours, where)
        theirs = group.get(_DECOUPLED)
        if theirs is not None and bool(theirs) not in (self.name == "AdamW", ours.get(_DECOUPLED)):
            raise BadArgument(
                f"{where} has {_DECOUPLED}={theirs!r}: it is of {'AdamW' if theirs else 'Adam'}, "
                f"not of {self.name}. Build ballast.torch.{'AdamW' if theirs else 'Adam'} for it; "
                f"{ONLY_WEIGHTS}"
            )
