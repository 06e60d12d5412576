"""One trainer's part in its job: the session, the tensors in the job, and how both begin and end.

Comes from: ballast.torch.service_optimizer. Goes to: ballast.session, ballast.torch.manifest.
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ballast import _exit_hooks, collective_option, user_state
from ballast.config import JobConfig
from ballast.errors import BadArgument, BadSpec, Closed, OverBudget, SpecMismatch
from ballast.interrupts import INTERRUPTED
from ballast.pauses import say
from ballast.session import Session
from ballast.torch import buffers, collective, gpu, nccl, reduced
from ballast.torch.edits import EditWatch, explained
from ballast.torch.job_names import JobNames
from ballast.torch.kind import Kind
from ballast.torch.manifest import Entry, Manifest
from ballast.torch.naming import Naming
from ballast.torch.shares import Shares

MANY_JOBS = 8  # more than a script has by design


class Membership:
    """Attaches at the first admit(); later ones bring in more tensors.

    config: read at every call; an attach replaces gradients="auto" by its finding. session: None
    until attached; an attached session ends with this object. options: of the kind, fixed for the
    job; {} until attached. user_state: this rank's value that the next round commits. loading:
    how far the last process in this seat came with load_export(), or None. place: training_data's
    position after the last round of a resumed job, or None. place_now: its position after the next
    round; None: there is none.
    shares: with collective=, once attached; else None.
    """

    def __init__(self, config: JobConfig, naming: Naming, kind: Kind) -> None:
        if config.collective is not None:
            collective.check(config)
        self.config = config
        self.session: Session | None = None
        self.shares: Shares | None = None
        self.manifest = Manifest()
        self.options: dict[str, float] = {}
        self.user_state: Any = None
        self.loading: user_state.Loading | None = None
        self.place: user_state.Place | None = None
        self.place_now: Callable[[], user_state.Place] | None = None
        self.edits = EditWatch()
        self._naming = naming
        self._names = JobNames()
        self._kind = kind
        self._closed = False
        self._gpu: gpu.Gpu | None = None
        self._may_average = False
        self._gradients_are_old = False  # since the return after an interrupt

    @property
    def entries(self) -> list[Entry]:
        """The tensors in the job."""
        return self.manifest.entries

    @property
    def stepped(self) -> list[Entry]:
        """Those of them that the script has in its groups still."""
        return [entry for entry in self.entries if not entry.left]

    @property
    def alone(self) -> bool:
        """Whether no other trainer can be in the job."""
        # In a variable world others may join between any two rounds.
        return self.config.world_size == 1 and not self.config.variable_world

    @property
    def world_size(self) -> int:
        """Trainers of the job; in a variable world, once attached, those of the next round."""
        if self.session is None or not self.config.variable_world:
            return self.config.world_size
        return self.session.world

    def counters(self) -> dict[str, int]:
        """Bytes moved and copied since attach; {} before."""
        if self.session is None:
            return {}
        counts = dict(self.session.counters())
        counts["copied_up_bytes"] += sum(e.copied_up for e in self.entries)
        counts["copied_down_bytes"] += sum(e.copied_down for e in self.entries)
        return counts

    def attached(self, what: str) -> Session:
        """The session, which is opened again after an interrupt ended it.

        Raises Closed after its end, BadArgument, naming the call `what`, before attach, and an
        attach's errors.
        """
        if self._broken_off():
            self._return()
        self._check_session()
        if self.session is None:
            raise BadArgument(
                f"{what}() needs a running job: the optimizer attaches at its first step()",
                job=self.config.job,
            )
        return self.session

    def check_open(self) -> None:
        """Raises Closed when no further call, or no further round, is possible, with the reason."""
        self._check_session()
        if self._gradients_are_old:
            raise Closed(
                f"{INTERRUPTED}. The weights of the finished rounds are in the model since then: "
                "call opt.attach(), and form new gradients with them",
                job=self.config.job,
                slot=self.config.rank,
            )

    def attach_again(self) -> bool:
        """After an interrupt: takes the seat in the job again, and allows further rounds.

        True if there was one; the parameters then hold the weights of the finished rounds. Raises
        as an attach.
        """
        if self._broken_off():
            self._return()
        again, self._gradients_are_old = self._gradients_are_old, False
        return again

    def _check_session(self) -> None:
        if self.session is not None:
            self.session.check_open()
        elif self._closed:
            raise Closed("the optimizer was closed", job=self.config.job, slot=self.config.rank)

    def _broken_off(self) -> bool:
        return self.session is not None and self.session.interrupted and not self._closed

    def _return(self) -> None:
        # The interrupted round may have ended or not; the servers know. As a restarted process
        # does, this one takes over their state.
        entries = self.entries
        self._take_seat([buffers.weight_address(e) for e in entries], entries, resume="must")
        self._gradients_are_old = True
        buffers.received(entries)
        self.edits.begin(entries)

    def leave(self) -> None:
        """Says that this trainer takes no further round. Idempotent."""
        self._closed = True
        if self.session is not None:
            self.session.leave()

    def refuse_step(self, param_groups: list[dict[str, Any]]) -> None:
        """Raises the errors that refuse a step() before its closure runs."""
        gpu.refuse_capture(param_groups, self.config.job)
        self.refuse_late_attach(param_groups)

    def refuse_late_attach(self, param_groups: list[dict[str, Any]]) -> None:
        """BadArgument when a step() would attach and thereby replace weights already used.

        The present gradients were made with other weights than those the job has.
        """
        if self._closed:
            return
        if self.session is None and self.config.resume != "never":
            raise BadArgument(
                f"resume={self.config.resume!r} needs opt.attach() before the first forward pass: "
                "it brings a resumed job's weights into the model, and opt.round and "
                "opt.user_state say where to continue",
                job=self.config.job,
            )
        if self.config.init != "broadcast" or self.alone:
            return
        if self.session is None or self.manifest.pending(param_groups, self._naming):
            raise BadArgument(
                'init="broadcast" needs opt.attach() before the first forward pass, and again '
                "after add_param_group(): it brings the lowest rank's weights into the model; "
                "gradients made with others would be wrong",
                job=self.config.job,
            )

    def may_grow(self, param_groups: list[dict[str, Any]]) -> bool:
        """Whether newcomers() would find some; False costs little. Checks nothing else."""
        return self.manifest.may_grow(param_groups)

    def newcomers(self, param_groups: list[dict[str, Any]]) -> list[Entry]:
        """The tensors that admit() has to bring in before the next round; [] for none.

        Raises Closed, and BadArgument, BadSpec or Unsupported for groups that no job can have.
        """
        self.check_open()
        gpu.refuse_capture(param_groups, self.config.job)
        self._see_removals(param_groups)
        entries = self.manifest.pending(param_groups, self._naming)
        if self.session is None and not entries:
            raise BadSpec(
                "none of the optimizer's parameters requires a gradient", job=self.config.job
            )
        return entries

    def all_entries(self, param_groups: list[dict[str, Any]]) -> list[Entry]:
        """The tensors in the job, and those that join at the next call."""
        self._see_removals(param_groups)
        return self.entries + self.manifest.pending(param_groups, self._naming)

    def _see_removals(self, param_groups: list[dict[str, Any]]) -> None:
        # Several trainers would have to do alike, and a script that resumes has other tensors.
        may_leave = self.alone and self.config.resume == "never"
        self.manifest.see_removals(param_groups, self.config.job, may_leave)

    def options_of(self, param_groups: list[dict[str, Any]]) -> dict[str, float]:
        """The job's options; before attach, those of a job with these groups."""
        return self.options if self.session is not None else self._kind.options(param_groups)

    def admit(
        self, entries: list[Entry], param_groups: list[dict[str, Any]], edited: bool
    ) -> None:
        """Brings newcomers() into the job: attaches with the first, extends the job by later ones.

        param_groups: torch's, whose options a new job gets. edited: changes to the other parameters
        are about to be uploaded; else settle_edits() looks at them. Afterwards the parameters hold
        the job's weights.
        """
        weights = [buffers.weight_address(e) for e in entries]
        received = self.config.init == "broadcast" and self.config.rank != 0
        if self.config.collective == collective_option.NCCL:
            nccl.check(_named(entries))
        collective.check_devices(self.config, _named(entries))
        if self.session is None:
            self.options = self._kind.options(param_groups)
            with explained():
                received = self._take_seat(weights, entries) or received
        else:
            gpu.refuse_joining(_named(entries), self._gpu)
            if not edited:
                self.settle_edits()
            specs = self._names.specs(entries)
            self.session.extend(specs, weights, _torch_groups(entries), keep=entries)
        self.manifest.add(entries)
        if received:
            buffers.received(entries)
        self.edits.join(entries)

    def settle_edits(self) -> bool:
        """Before a round: whether present weights are to be uploaded first; see EditWatch."""
        arrays = len(self._kind.arrays(self.options))
        return self.edits.settle(self.entries, self.session, arrays, self.config)

    def _take_seat(
        self, weights: list[int], entries: list[Entry], resume: str | None = None
    ) -> bool:
        self._gpu = gpu.of(_named(entries), self.config.pinned_bytes)
        self._settle_gradients(entries)

        def attach(config: JobConfig) -> Session:
            wanted = config if resume is None else dataclasses.replace(config, resume=resume)
            return self._attach_by_its_names(wanted, weights, entries)

        try:
            self.session = attach(self.config)
        except SpecMismatch as error:
            if not self._may_average or self.config.gradients != "reduced":
                raise
            # The job may have been begun without DDP, or by an older release; averages of equal
            # gradients are right, too. Where this is no such job, the first answer says why.
            averaging = dataclasses.replace(self.config, gradients="local")
            try:
                self.session = attach(averaging)
            except SpecMismatch:
                raise error from None
            self.config = averaging
        weakref.finalize(self, _exit_hooks.end, self.session).atexit = False
        if self.config.collective is not None:
            self.shares = self._join_collective(self.session)
        if self.session.resumed:
            self._read_user_state(self.session.user_state)
        return self.session.resumed

    def _attach_by_its_names(
        self, config: JobConfig, weights: list[int], entries: list[Entry]
    ) -> Session:
        while True:
            try:
                return Session.attach(
                    config,
                    self._optimizer(),
                    self._names.specs(entries),
                    weights,
                    keep=entries,
                    schedule_groups=_torch_groups(entries),
                    gpu=self._gpu,
                )
            except SpecMismatch as error:
                if not self._names.follow(error, entries):
                    raise
            except OverBudget as error:
                raise _with_fewer_jobs(error, _exit_hooks.open_sessions()) from None

    def _optimizer(self) -> tuple[str, dict[str, float]]:
        quirk = self._kind.quirk if self.config.profile == "deepspeed" else ""
        options = {**self.options, quirk: 1.0} if quirk else self.options
        return self._kind.service or self._kind.name, options

    def _join_collective(self, session: Session) -> Shares:
        ours = self.config.collective == collective_option.NCCL
        calls = (
            nccl.Nccl(self.config, session, self._gpu)
            if ours
            else collective.Collective(self.config, session)
        )
        if not calls.recovers:  # Else a step waits for the lost rank's new process.
            session.need_these_processes(calls.timeout_s)
        return Shares(calls, session)

    def _read_user_state(self, committed: bytes) -> None:
        self.user_state = user_state.decode(committed)
        self.loading = user_state.loading_of(committed)
        self.place = user_state.place_of(committed)

    def _settle_gradients(self, entries: list[Entry]) -> None:
        config = self.config
        self._may_average = config.gradients == "auto"
        if not self._may_average:
            return
        # One trainer's gradient is the mean; the job may be continued by several, in DDP.
        equal = self.alone or reduced.by_ddp((e.param for e in entries), self.world_size)
        self.config = dataclasses.replace(config, gradients="reduced" if equal else "local")
        if self.alone or config.rank != 0:
            return
        how = "one of them pushes the mean that DDP has made" if equal else "the service averages"
        say(0, f"gradients of {self.world_size} trainers: {how}")


def _with_fewer_jobs(error: OverBudget, jobs: int) -> OverBudget:
    """`error` with the alternative to many optimizers, where this process has many."""
    if jobs < MANY_JOBS:
        return error
    return error.followed_by(
        f"This process is in {jobs} jobs, one for each of its optimizers. One optimizer of all "
        "parameters is one job: give it model.named_parameters(), or groups with rates of their "
        "own, and call its step() once after backward() in place of one per parameter in hooks"
    )


def _named(entries: list[Entry]) -> list[tuple[str, torch.Tensor]]:
    return [(entry.name, entry.param) for entry in entries]


def _torch_groups(entries: list[Entry]) -> list[int]:
    """The torch group of each service group of the entries."""
    of = {entry.service_group: entry.torch_group for entry in entries}
    return [of[group] for group in sorted(of)]
