"""The schedule of a ds_config as the script sees it: the service moves it, round by round.

Comes from: ballast.deepspeed.building. Goes to: the script, as what initialize() returns last.
Thread safety: as ballast.torch.
"""

from __future__ import annotations

from typing import Any

from ballast.torch.service_optimizer import ServiceOptimizer


class ServiceSchedule:
    """Reads of DeepSpeed's schedulers. The position is the job's: it survives with the state.

    optimizer: whose rates the schedule decides.
    """

    def __init__(self, optimizer: ServiceOptimizer) -> None:
        self.optimizer = optimizer

    @property
    def last_batch_iteration(self) -> int:
        """Position of the next round; -1 before the first."""
        policy = self.optimizer.policy
        return -1 if policy is None else int(policy["schedule_index"])

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group in the last round."""
        return self.optimizer.get_last_lr()

    get_lr = get_last_lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Does nothing: an applied round has moved the schedule."""

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: the position comes with the job."""
