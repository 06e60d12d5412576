"""The common part of torch optimizers whose state lives in Ballast servers.

Comes from: ballast.torch.adamw. Goes to: ballast.torch.membership and rounds; its views of them are
in ballast.torch.job_view, and its requests between rounds in job_calls. The class is a
torch.optim.Optimizer: schedulers, hooks, closures, gradient accumulation and add_param_group work
as they do in torch. It knows no kind of optimizer by name; ballast.torch.kind.Kind holds the
differences.
Thread safety: one thread trains. Calls from other threads meanwhile, such as state_dict(),
export_state() or snapshot(), wait for their turn, and step() waits for their end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ballast import config
from ballast.errors import BadArgument, Unsupported, at_border
from ballast.torch import files, handle, load
from ballast.torch.accumulation import Accumulation
from ballast.torch.job_calls import JobCalls
from ballast.torch.manifest import warn_of_order
from ballast.torch.membership import Membership
from ballast.torch.naming import Naming, check_params
from ballast.torch.rounds import Rounds
from ballast.torch.scaling import scaled
from ballast.torch.service_state import asked_by_dcp, refuse_made_up_step
from ballast.torch.turns import Turn, in_turn


class ServiceOptimizer(JobCalls):
    """Base of the optimizers of ballast.torch.

    A subclass sets `_kind` and passes its arguments on. Its constructor takes what torch's does,
    `model`, and the keywords of JobOptions.
    """

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        model: torch.nn.Module | None,
        job_options: config.JobOptions,
    ) -> None:
        """defaults: the kind's hyper-parameters and options, as they were given."""
        config.refuse_unknown(job_options, f"{self._kind.name}.__init__()")
        check_params(params)
        defaults = self._kind.checked_defaults(defaults)
        self._naming = Naming(model)  # super() adds the groups, which are named there.
        super().__init__(params, defaults)
        settings = config.resolve(**job_options)
        self._turn = Turn()
        self._accumulation = Accumulation(settings.accumulation_steps)
        self._prepare(settings)

    def _prepare(self, settings: config.JobConfig) -> None:
        """For the job that `settings` name, in place of the present one; nothing is sent."""
        self._membership = Membership(settings, self._naming, self._kind)
        self._rounds = Rounds(self._membership, self._kind, self._accumulation)
        self._carried: dict[str, Any] | None = None  # the wrapped optimizer's state, until attached

    # ---- the torch contract

    @at_border
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; after the first step() its tensors join the job at the next one.

        All trainers must add the same groups between the same two steps. Raises as torch does, and
        Unsupported for options of the group that this version lacks. When the servers have no room
        for it, that step() raises OverBudget on all trainers, and the job stays as it was.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = self._naming.normalise(param_group)
        where = f"param_groups[{len(self.param_groups)}]"
        self._kind.refuse_group({**self.defaults, **group}, self.param_groups, where)
        if "_rounds" in self.__dict__:  # not yet in the constructor
            self._rounds.rates.refuse_more(len(self.param_groups) + 1)
        super().add_param_group(group)
        try:  # At once: a script would load a large model first.
            self._naming.refuse_shards(self.param_groups)
        except Unsupported:
            self.param_groups.pop()
            raise

    @at_border
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One round: pushes all gradients, waits for the service, receives the stepped weights.

        With accumulation_steps, and inside no_sync(), a step() that does not end a round adds the
        gradients to the sum of their round and sends nothing; it is a micro-batch.
        closure: re-evaluates the model with gradients enabled and returns the loss, which step()
        returns; called once. The first call attaches (see the class). A parameter whose gradient is
        None on all trainers is left untouched and its step count does not advance; where only some
        trainers have one, the others count as zeros. A non-finite gradient anywhere skips or halts
        the round on all trainers (see `nonfinite` above).
        Errors: subclasses of ballast.BallastError. After one during the round the parameters may
        hold a mix of old and new values; after NonfiniteGradient they are unchanged, and step()
        may be called again.
        """
        refuse_made_up_step()
        self._membership.refuse_step(self.param_groups)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_scaler()
        with self._turn, torch.no_grad():
            if self._accumulation.ends_round():
                self._join()
                self._rounds.step(self.param_groups)
            else:
                newcomers = self._membership.newcomers(self.param_groups)
                entries = self._membership.stepped + newcomers
                self._accumulation.add(entries, self._rounds.scale.declared)
        return loss

    @property
    @at_border
    def loss_scale(self) -> float:
        """The factor on the next loss. A dynamic scale attaches, as attach() does.

        A script that multiplies by it reads it before each backward pass: a round whose gradients
        are multiplied by another scale than the job's raises LossScaleMismatch.
        """
        if self._rounds.scale.dynamic and self._membership.session is None:
            self.attach()
        return self._rounds.scale.read()

    cur_scale = loss_scale  # DeepSpeed's name

    @at_border
    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """loss * loss_scale, for backward(); the service divides it out of the gradients.

        In fp32 where the loss has 16 bits. BadArgument, as step(), where attach() comes first.
        """
        if self._rounds.scale.dynamic:
            self._membership.refuse_late_attach(self.param_groups)
        return scaled(loss, self.loss_scale)

    def no_sync(self) -> AbstractContextManager[None]:
        """A context in which each step() adds its gradients to the sum and makes no round.

        For windows of another length than accumulation_steps, which may be 1:
        `with opt.no_sync() if more else contextlib.nullcontext(): opt.step()`.
        """
        return self._accumulation.no_sync()

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of a round; may be set between any two steps, as for a short last round."""
        return self._accumulation.steps

    @accumulation_steps.setter
    @at_border
    def accumulation_steps(self, steps: int) -> None:
        self._accumulation.steps = config.accumulation_steps(steps)

    @property
    def micro_steps(self) -> int:
        """Micro-batches in the sum of the present round; 0 right after a step() that made one."""
        return self._accumulation.count

    def discard_accumulated(self) -> None:
        """Drops the micro-batches in the sum, so that the next step() begins a new one."""
        self._accumulation.discard()

    @at_border
    @in_turn
    def state_dict(self) -> dict[str, Any]:
        """A small handle: {"state": {}, "param_groups", "ballast": {job, job_id, round, ...}}.

        Local and cheap; it holds no tensors of the service. See export_state() for those; to DCP's
        get_optimizer_state_dict() it gives them, because that keeps nothing but the state. Raises
        BadArgument between the micro-batches of a round, whose sum it would lose.
        """
        if self.micro_steps:
            raise BadArgument(
                f"state_dict(): the sum of {self.micro_steps} micro-batches is in this process "
                "only; call it after the step() that ends the round, or discard_accumulated() first"
            )
        packed = super().state_dict()
        packed["state"] = self.export_state()["state"] if asked_by_dcp() else {}
        packed["ballast"] = handle.make(
            job=self.job,
            job_id=self.job_id,
            round=self.round,
            opt_step=self.opt_step,
            world_size=self._membership.config.world_size,
        )
        return packed

    @at_border
    @in_turn
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the hyper-parameters of all groups, after checking the handle.

        Loading the optimizer's own present state changes nothing. Raises Unsupported for moments of
        a torch optimizer and for handles to another job or round; ValueError as torch does when the
        groups do not fit.
        """
        handle.check(state_dict, job_id=self.job_id, round=self.round)
        self._rounds.rates.take(self.param_groups)
        for i, group in enumerate(state_dict["param_groups"]):
            where = f"param_groups[{i}] of the state dict"
            self._kind.refuse_group({**self.defaults, **group}, self.param_groups, where)
        groups = self.param_groups
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        for group, loaded in zip(groups, self.param_groups):
            group.clear()
            group.update(loaded)
        self.param_groups = groups  # Others hold them, such as the wrapped optimizer.
        self._rounds.rates.loaded(self.param_groups)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Ballast optimizer cannot be pickled or copied: it holds this process's seat in a "
            "job. Save opt.state_dict() (a handle) or opt.export_state() (tensors)"
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # torch.amp.GradScaler asks this. With one trainer it unscales and skips by itself; with
        # several it must hand over, so that step() can refuse: ranks would skip different rounds.
        return self._rounds.scale.dynamic or not self._membership.alone

    # ---- the service

    @at_border
    @in_turn
    def attach(self) -> bool:
        """Attaches now instead of at the first step(), and returns `resumed`. Idempotent.

        To be called when the model has its final dtype, and with resume= before the first forward
        pass: in an existing job the parameters then hold its weights, `round` says how many rounds
        it has finished and `user_state` is this rank's value from the last of them. Waits
        for the other trainers. After an interrupt (Ctrl-C) in step() it takes the seat in the job
        again, in the same way; micro-batches of the aborted round are dropped. Errors:
        subclasses of ballast.BallastError.
        """
        with torch.no_grad():
            if self._membership.attach_again():
                self._accumulation.discard()
                self._rounds.show_rates(self.param_groups)
            self._join()
        return self.resumed

    @at_border
    @in_turn
    def upload_weights(self) -> None:
        """Makes the parameters' present values the service's; moments and step counts stay.

        All trainers call it between the same two steps, as they do step(). It is a round of its
        own: `round` grows by one, `opt_step` does not, user_state is committed with it, and
        last_report stays that of the last step(). With init="equal" all trainers must have made the
        same edits; else all get InitMismatch, which names the first tensor, and the job ends. With
        init="broadcast" the lowest rank's values are given to the others. 16-bit values become fp32
        masters exactly. When a server dies meanwhile, either all of them or none has the new
        weights, and the call continues as step() does. A script that may be resumed decides by
        `round` or user_state whether to upload, so that a restarted rank does as the others do.
        Before the first step(), or attach(), there is nothing to do: that uploads.
        """
        self._membership.check_open()
        if self._membership.session is None:
            return
        with torch.no_grad():
            self._join(edited=True)
            self._rounds.upload()

    @at_border
    @in_turn
    def load_export(
        self, source: dict[str, Any] | str | os.PathLike[str], schedule_index: int | None = None
    ) -> None:
        """Makes `source` the service's state: all of its arrays and step counts, bit for bit.

        source: the result of export_state(), or state_dict() of this kind in torch.optim, or a path
        on this machine: an export of `ballastctl export`, in either format, another universal
        checkpoint of DeepSpeed, or safetensors weights (one file, or a directory, with or without
        an index), with which everything else begins as in a new job. In files parameters are found
        by name, frozen ones, too. Dicts have, per parameter, a step, the kind's arrays and
        optionally master, without which its present value counts, and are found by name where the
        source has names ("names", torch's "param_names", or names as keys), else by position, as in
        torch. Parameters without state there start with the arrays of a new job (0, Adagrad's
        sum at initial_accumulator_value); frozen ones are left alone.
        The hyper-parameters of its groups become those of param_groups; with lr_schedule the
        service decides lr and betas, and a torch scheduler's initial_lr is not taken over.
        schedule_index: lr_schedule's position from then on, DeepSpeed's last_batch_iteration; None:
        it stays, in a new job at -1.

        All trainers call it, with equal sources, between the same two steps; it attaches if
        necessary. It takes a round per array, two where parameters have 16 bits, and
        `round` grows by as many; user_state is committed with each. `opt_step` becomes the largest
        step with the last of them. So a script restarted with resume, on one rank or all, that
        finds opt_step 0 calls it again: it continues with the others' plane. A server that
        dies meanwhile costs a pause. The parameters then hold the job's weights. last_report stays.
        Raises BadArgument, BadHyperparam or Unsupported, naming parameter or group, for a source
        that does not fit; then nothing was sent or changed. InitMismatch ends the job for all when
        the sources differ or another trainer does something else in that round.
        """
        self._membership.check_open()
        self._rounds.rates.check_index(schedule_index)
        with torch.no_grad():
            state, fingerprint = self._state_of(source, schedule_index)
            self._carried = None  # This is loaded in its place.
            if self._membership.session is None and self._membership.config.resume == "never":
                state.put_weights(self._membership.all_entries(self.param_groups))
            self._join(edited=True)
            self._rounds.load(state, fingerprint)
            state.apply_groups(self.param_groups)
            self._rounds.rates.loaded(self.param_groups)
            state.put_frozen()

    # ---- inside

    def _refuse_scaler(self) -> None:
        if not hasattr(self, "found_inf") and not hasattr(self, "grad_scale"):
            return
        for name in ("found_inf", "grad_scale"):
            self.__dict__.pop(name, None)
        if self._rounds.scale.dynamic:
            raise Unsupported(
                'torch.amp.GradScaler with loss_scale="dynamic" is not supported: both would scale '
                "the loss. Use opt.scale(loss).backward() and opt.step() without it",
                job=self.job,
            )
        raise Unsupported(
            f"torch.amp.GradScaler with world_size={self._membership.config.world_size} is not "
            "supported: each trainer would skip other rounds. Pass loss_scale= to "
            f"ballast.torch.{self._kind.name} and multiply the loss by it; non-finite rounds are "
            "then skipped on all trainers together",
            job=self.job,
        )

    def _join(self, edited: bool = False) -> None:
        # Attaches at the first step; later brings in new groups and parameters. edited: changes to
        # the others are about to be uploaded.
        membership = self._membership
        self._rounds.rates.take(self.param_groups)
        entries = membership.newcomers(self.param_groups)
        if not entries:
            return
        carried = None if self._carried is None else self._state_of(self._carried)
        attaches = membership.session is None
        membership.admit(entries, self.param_groups, edited)
        if carried is not None:
            self._carried = None
            # With steps taken the job is past its beginning; without, a load may have been cut off.
            # The groups' hyper-parameters were taken along, and may have been changed since.
            if self.opt_step == 0:
                self._rounds.load(*carried)
        if attaches and self.resumed:
            self._rounds.show_rates(self.param_groups)
            # Last, because it raises if warnings are errors.
            warn_of_order(
                entries,
                "says which of the resumed job's tensors each of them is",
                "the optimizer of the next job",
            )

    def _carry(self, source: dict[str, Any]) -> None:
        """For wrap(): `source` is loaded once attached, unless the job has taken steps already.

        Raises as load_export() for one that does not fit.
        """
        self._state_of(source)
        self._carried = source

    def _state_of(self, source: Any, index: int | None = None) -> tuple[load.State, bytes]:
        # Also for parameters that join at the next call. With the source's fingerprint.
        groups = self.param_groups
        entries = self._membership.all_entries(groups)
        options = self._membership.options_of(groups)
        present = [entry for entry in entries if not entry.left]
        into = load.Receiver(groups, present, self._naming, self._kind, options)
        state = files.state_of_source(source, into)
        state.schedule_index = index
        fingerprint = state.fingerprint(entries)
        state.keep_weights(entries)
        return state, fingerprint
