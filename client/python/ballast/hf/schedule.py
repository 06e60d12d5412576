"""A scheduler section of the ds_config under Trainer: the service's rates in place of Trainer's.

Comes from: ballast.hf.callback and ballast.hf.resuming. Goes to: the scheduler that Trainer has
made, which then only reads. Thread safety: used by Trainer's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim.lr_scheduler import LRScheduler


class ServiceLR(LRScheduler):
    """What Trainer calls of its scheduler; the service moves the schedule with each round."""

    def step(self, epoch: Any = None) -> None:
        """Does nothing: an applied round has moved the schedule."""

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group in the last round."""
        return [float(rate) for rate in self._service().get_last_lr()]

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint's folder; the position itself is in the job and its snapshots.

        A resume loads it into Trainer's new LambdaLR, which asks for lr_lambdas.
        """
        policy = self._service().policy
        index = -1 if policy is None else int(policy["schedule_index"])
        return {"schedule_index": index, "lr_lambdas": []}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: the position comes with the job."""

    def _service(self) -> Any:
        return getattr(self.optimizer, "optimizer", self.optimizer)


def take_over(scheduler: Any, groups: Iterable[dict[str, Any]]) -> None:
    """Turns Trainer's scheduler into a reader, and undoes its changes to param_groups."""
    release(groups)
    scheduler = getattr(scheduler, "scheduler", scheduler)
    if scheduler is not None:
        scheduler.__class__ = ServiceLR


def release(groups: Iterable[dict[str, Any]]) -> None:
    """Gives groups back the rate that they had before a scheduler of torch was built on them."""
    for group in groups:
        if "initial_lr" in group:
            group["lr"] = group.pop("initial_lr")
