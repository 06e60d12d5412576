"""The factor by which the script multiplies its loss, static or moved by the service.

Comes from: ballast.torch.service_optimizer and rounds. Goes to: ballast.session, which says with
each round the factor on its gradients.
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ballast.errors import BadArgument, LossScaleMismatch
from ballast.loss_scale import DynamicLossScale
from ballast.torch.membership import Membership


class LossScale:
    """The scale of the next backward pass. `membership` is borrowed and outlives this object."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._read = 1.0  # the script's last known scale, which is in its gradients

    @property
    def dynamic(self) -> bool:
        return isinstance(self._membership.config.loss_scale, DynamicLossScale)

    @property
    def counts(self) -> bool:
        """Whether gradients are multiplied by something else than 1."""
        return self._membership.config.loss_scale != 1.0

    @property
    def declared(self) -> float:
        """For Session.step(): the factor on the gradients; 0 with a static scale."""
        return self._read if self.dynamic else 0.0

    def read(self) -> float:
        """The scale of the next backward pass. A dynamic one needs an attached membership."""
        given = self._membership.config.loss_scale
        if not isinstance(given, DynamicLossScale):
            return given
        self._read = float(self._membership.attached("loss_scale").policy["loss_scale"])
        return self._read

    def advised(self, error: LossScaleMismatch, more: str) -> LossScaleMismatch:
        """The error with the script's next step: `more`, or else the usual one."""
        usual = "use opt.scale(loss).backward(), or opt.loss_scale as it is at that moment"
        advice = more or usual
        fields = {k: getattr(error, k) for k in ("code", "job", "round", "slot", "server")}
        return LossScaleMismatch(f"{error.message}; {advice}", **fields)


class ScaleView:
    """A loss scale by DeepSpeed's names. Those of a dynamic one are missing of a static one.

    policy: the service's last policy; {} before attach, when a dynamic scale is the first one.
    """

    scale_factor = 2.0

    def __init__(
        self, given: float | DynamicLossScale, policy: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._given, self._policy = given, policy
        self.dynamic_loss_scale = self.dynamic = isinstance(given, DynamicLossScale)
        if isinstance(given, DynamicLossScale):
            self.scale_window, self.min_scale = given.loss_scale_window, given.min_loss_scale
            self.min_loss_scale = given.min_loss_scale

    @property
    def cur_scale(self) -> float:
        """The factor on the next loss."""
        if not isinstance(self._given, DynamicLossScale):
            return self._given
        return float(self._policy().get("loss_scale", 2.0**self._given.initial_scale_power))

    loss_scale = cur_scale

    @property
    def cur_iter(self) -> int:
        """Rounds so far."""
        return int(self._policy().get("scaler_iteration", 0))

    @property
    def last_overflow_iter(self) -> int:
        """The newest round with a non-finite gradient; -1 for none."""
        return int(self._policy().get("last_overflow", -1))


def scaled(loss: torch.Tensor, factor: float) -> torch.Tensor:
    """loss * factor, in fp32 for 16-bit losses. BadArgument for anything else."""
    if not isinstance(loss, torch.Tensor):
        raise BadArgument(f"scale() takes the loss as a tensor, not a {type(loss).__name__}")
    return (loss.float() if loss.element_size() < 4 else loss) * factor
