"""The schedule of a ds_config as the script sees it: the service moves it, round by round.

Comes from: ballast.deepspeed.building. Goes to: the script, as what initialize() returns last.
Thread safety: as ballast.torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast.ds_checkpoint.fields import number
from ballast.errors import BadArgument
from ballast.schedules import OneCycle
from ballast.torch.scheduled import INDEX_MAX
from ballast.torch.service_optimizer import ServiceOptimizer


def saved_position(saved: Mapping[str, Any], path: str) -> int | None:
    """The position of a schedule from its state_dict() in a checkpoint; None if absent there.

    As the service counts: -1 before the first round. DeepSpeed's schedules count from -1, as the
    service's does, and torch's from 0. path: for the text of BadArgument.
    """
    for key, first in (("last_batch_iteration", -1), ("last_epoch", 0)):
        count = number(saved.get(key))
        if count is not None and first <= count <= INDEX_MAX:
            return count - first - 1
        if key in saved:
            raise BadArgument(f"{path}: {key} of its lr_scheduler is no position")
    return None


class ServiceSchedule:
    """DeepSpeed's schedulers over the service's. The position is the job's: it survives with it.

    optimizer: whose rates the schedule decides; its param_groups have the next round's values.
    """

    def __init__(self, optimizer: ServiceOptimizer) -> None:
        self.optimizer = optimizer

    @property
    def schedule(self) -> Any:
        """What ballast.schedules has of it."""
        return self.optimizer._membership.config.lr_schedule

    @property
    def last_batch_iteration(self) -> int:
        """Position of the next round; -1 before the first."""
        policy = self.optimizer.policy
        return -1 if policy is None else int(policy["schedule_index"])

    def show(self) -> None:
        """Puts the rates of the next round into param_groups, where the last round's may be."""
        optimizer = self.optimizer
        profile = optimizer._membership.config.profile
        optimizer._rounds.rates.show_next(
            optimizer.param_groups, self.last_batch_iteration, profile
        )

    def get_lr(self) -> list[float]:
        """The learning rate of each group, with which the next round steps."""
        self.show()
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    get_last_lr = get_lr

    def get_mom(self) -> list[tuple[float, float]] | None:
        """The betas of each group in the next round; None for a schedule that leaves them alone.

        Before the first round beta1 is cycle_max_mom, as DeepSpeed says, and its first round steps
        with cycle_min_mom, which param_groups have.
        """
        schedule = self.optimizer._membership.config.lr_schedule
        if not isinstance(schedule, OneCycle) or not schedule.sets_betas:
            return None
        self.show()
        betas = [group["betas"] for group in self.optimizer.param_groups]
        if self.last_batch_iteration >= 0:
            return betas
        first = schedule.cycle_max_mom
        largest = first if isinstance(first, tuple) else (first,) * len(betas)
        return [(beta1, beta2) for beta1, (_, beta2) in zip(largest, betas)]

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Does nothing: an applied round has moved the schedule."""

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: the position comes with the job."""
