"""An optimizer's view of its job in the service and of the last round.

Comes from: ballast.torch.service_optimizer, which derives from it. Goes to:
ballast.torch.membership and rounds, which are read only.
Thread safety: as torch.optim.Optimizer.
"""

from __future__ import annotations

from typing import Any

import torch

from ballast.torch.kind import Kind
from ballast.torch.membership import Membership
from ballast.torch.rounds import Rounds
from ballast.torch.scaling import ScaleView
from ballast.torch.service_state import ServiceState, refuse_replaced
from ballast.torch.untraced import UntracedOptimizer


class JobView(UntracedOptimizer):
    """The properties of ServiceOptimizer that change nothing, but for user_state."""

    _kind: Kind
    _membership: Membership
    _rounds: Rounds

    @property
    def state(self) -> ServiceState:
        """Has the job's parameters, with the keys of their states; values are in the service."""
        return ServiceState(self._in_job, self._known_state)

    @state.setter
    def state(self, state: Any) -> None:  # torch's constructor does it, too.
        refuse_replaced(state, bool(self._in_job()))

    def _in_job(self) -> list[torch.Tensor]:
        if "_membership" not in vars(self):  # in the constructor
            return []
        known = self._membership.manifest.of
        return [p for group in self.param_groups for p in group["params"] if known(p) is not None]

    def _known_state(self, parameter: torch.Tensor) -> tuple[str, tuple[str, ...]] | None:
        entry = self._membership.manifest.of(parameter)
        if entry is None:
            return None
        return entry.name, ("step", *self._kind.arrays(self._membership.options)[1:])

    @property
    def last_report(self) -> dict[str, Any] | None:
        """All fields of the last round's RoundReport (client/cpp/ballast/client.h); None before.

        "paused_ms" has the part of the round during which a server was away, "reconnects" how often
        one came back since the round before.
        """
        return None if self._rounds.report is None else dict(self._rounds.report)

    @property
    def grad_norm(self) -> float | None:
        """Global 2-norm of the last round's unscaled mean gradient, before clipping."""
        return None if self._rounds.report is None else self._rounds.report["grad_norm"]

    @property
    def clip_coef(self) -> float | None:
        """Factor by which max_grad_norm scaled the last round's gradient; 1.0 when it did not."""
        return None if self._rounds.report is None else self._rounds.report["clip_coef"]

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last round was skipped on all trainers because of non-finite gradients.

        With a dynamic loss scale or a schedule also right after attach() in a resumed job.
        """
        if self._rounds.report is None:
            return self.policy is not None and bool(self.policy["last_skipped"])
        return not self._rounds.report["applied"]

    @property
    def skipped_steps(self) -> int:
        """Skipped rounds: all of the job's with a dynamic loss scale or a schedule, else those in
        which this process took part. A halt at the smallest loss scale does not count."""
        policy = self.policy
        return self._rounds.skipped if policy is None else int(policy["skipped_rounds"])

    @property
    def policy(self) -> dict[str, Any] | None:
        """Loss scale and schedule before the next round: Policy (client/cpp/ballast/policy.h).

        None before attach, and in a job without a dynamic loss scale or a schedule.
        """
        config, session = self._membership.config, self._membership.session
        decides = self._rounds.scale.dynamic or config.lr_schedule is not None
        return session.policy if decides and session is not None else None

    @property
    def overflow(self) -> bool:
        """DeepSpeed's name of step_was_skipped."""
        return self.step_was_skipped

    @property
    def dynamic_loss_scale(self) -> bool:
        """Whether the service moves the loss scale; DeepSpeed's name."""
        return self._rounds.scale.dynamic

    def needs_scaler(self) -> bool:
        """DeepSpeed's name of dynamic_loss_scale."""
        return self.dynamic_loss_scale

    @property
    def loss_scaler(self) -> ScaleView:
        """The scale as DeepSpeed's optimizers show it, local and current."""
        return ScaleView(self._membership.config.loss_scale, lambda: self.policy or {})

    loss_scale_config = loss_scaler  # DeepSpeed's name at stage 0

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group; with lr_schedule the last round's."""
        return [float(group["lr"]) for group in self.param_groups]

    @property
    def round(self) -> int:
        """Rounds finished so far, skipped ones included."""
        return 0 if self._membership.session is None else self._membership.session.round

    @property
    def opt_step(self) -> int:
        """Rounds applied so far."""
        return 0 if self._membership.session is None else self._membership.session.opt_step

    @property
    def resumed(self) -> bool:
        """Whether attach() took a seat in an existing job; False before."""
        return self._membership.session is not None and self._membership.session.resumed

    @property
    def user_state(self) -> Any:
        """State that this rank's script needs to continue: its data position, random_state(),
        schedulers.

        Bytes, or a value that JSON can hold; at most 64 KiB. step() commits its value at that
        moment with the round, and after attach() in a resumed job it is the value of the newest
        finished round (None when there was none). A step() with a value too large, or one that JSON
        cannot hold, raises BadArgument before anything is sent.
        """
        return self._membership.user_state

    @user_state.setter
    def user_state(self, value: Any) -> None:
        self._membership.user_state = value

    @property
    def counters(self) -> dict[str, int]:
        """Bytes moved and copied since attach; {} before the first step().

        payload_up_bytes, payload_down_bytes: of gradients and weights on the wire. copied_up_bytes,
        copied_down_bytes: bytes copied in this process on their way: none up and each once down,
        and once more, both ways, for a non-contiguous tensor.
        """
        return self._membership.counters()

    @property
    def job(self) -> str:
        return self._membership.config.job

    @property
    def job_id(self) -> int:
        """The servers' number of the job; 0 before the first step()."""
        return 0 if self._membership.session is None else self._membership.session.job_id

    @property
    def durability(self) -> str:
        """The failures that a finished round survives: "power", "process" or "none"."""
        return self._membership.config.durability

    @property
    def world_size(self) -> int:
        """Trainers of the job; with variable_world, and once attached, those of the next round."""
        return self._membership.world_size

    @property
    def rank(self) -> int:
        return self._membership.config.rank
