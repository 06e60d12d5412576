"""The rounds of one trainer: steps, uploads of weights, and loads of state, plane by plane.

Comes from: ballast.torch.service_optimizer. Goes to: ballast.session, through the membership.
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

from typing import Any

import torch

from ballast import user_state
from ballast.errors import BadArgument, BallastError, LossScaleMismatch, NonfiniteGradient, warn
from ballast.torch import buffers, load, reduced
from ballast.torch.accumulation import Accumulation, dropped_text
from ballast.torch.edits import explained
from ballast.torch.kind import Kind
from ballast.torch.local_clip import LocalClipWatch
from ballast.torch.manifest import Entry
from ballast.torch.membership import Membership
from ballast.torch.scaling import LossScale
from ballast.torch.scheduled import ScheduledRates


class Rounds:
    """Runs rounds over the tensors of an attached membership, without autograd.

    report: the fields of the last step's RoundReport; None before. skipped: steps of this process
    not applied. scale, rates: the service's possible decisions. Every call raises as Session does,
    after an error the parameters may hold a mix of old and new values. `membership` and
    `accumulation` are borrowed and outlive this object.
    """

    def __init__(self, membership: Membership, kind: Kind, accumulation: Accumulation) -> None:
        self.report: dict[str, Any] | None = None
        self.skipped = 0
        self.scale = LossScale(membership)
        self.rates = ScheduledRates(membership.config.lr_schedule, kind)
        self._membership = membership
        self._kind = kind
        self._accumulation = accumulation
        self._clip_watch = LocalClipWatch()
        self._equal: bool | None = None  # gradients on all trainers; None: not looked yet
        self._hyper: list[tuple[float, ...]] = []  # of the last step, per service group

    def step(self, param_groups: list[dict[str, Any]]) -> None:
        """Pushes the gradients of all parameters and puts the stepped weights into them.

        Micro-batches added up before are part of it; their sum stays until the round has
        ended. param_groups: torch's, with the hyper-parameters of this step.
        """
        membership = self._membership
        entries = membership.entries
        if membership.settle_edits():
            self.upload()
        self._accumulation.expect(self.scale.declared)
        state = self._user_state()
        groups = membership.manifest.service_groups
        hyper = [self._kind.read(self.rates.own(param_groups, g), g) for g in groups]
        self._kind.refuse_changes(param_groups, membership.options)
        for g, before, now in zip(groups, self._hyper, hyper):
            self._kind.refuse_new_values(before, now, g)
        lent = [(0, None) if e.left else self._accumulation.lend(e) for e in entries]
        self._look_for_ddp(entries)
        self._look_for_local_clips(lent)
        shares = membership.shares
        with membership.session.interrupts_last():
            if shares is None:
                self._run(param_groups, hyper, lent, state)
                return
            # Again when trainers were replaced, and the sums hold gradients of the old ones.
            while not self._run(
                param_groups, hyper, shares.reduce(entries, lent, self.scale.declared), state
            ):
                pass

    def _run(
        self,
        param_groups: list[dict[str, Any]],
        hyper: list[tuple[float, ...]],
        lent: list[tuple[int, Any]],
        state: bytes,
    ) -> bool:
        """The round of step(), with what `lent` has. False: its sums are of an ended epoch, nothing
        was applied, and the round is still to be run."""
        entries, shares = self._membership.entries, self._membership.shares
        before = self._bits_of_silent(entries, lent)
        applied = True
        try:
            self.report = self._push(hyper, lent, state)
            applied = self.report["applied"]
            if shares is not None and applied:
                shares.gather(entries, lent)
            self._hyper = hyper
            self._ended(param_groups, applied)
        except LossScaleMismatch as error:
            applied = False
            raise self._advised(error) from None
        except NonfiniteGradient:
            applied = False
            self._ended(param_groups, applied)
            raise
        except BallastError as error:
            if shares is None or error.reason != "STALE_EPOCH":
                raise
            applied = False
            shares.refuse_stale(error)
            return False
        finally:
            if applied:
                stepped = [e for e, (address, _) in zip(entries, lent) if address]
                buffers.received(stepped + _changed(before))
            self._membership.edits.begin(entries)
        return True

    def _push(
        self, hyper: list[tuple[float, ...]], lent: list[tuple[int, Any]], state: bytes
    ) -> dict[str, Any]:
        entries, shares = self._membership.entries, self._membership.shares
        grads = [address for address, _ in lent]
        weights = [buffers.weight_address(e) for e in entries]
        sums_of = 0 if shares is None else shares.epoch
        keep, scale = (entries, lent), self.scale.declared
        session = self._membership.session
        return session.step(hyper, grads, weights, state, keep, scale, sums_of)

    def _advised(self, error: LossScaleMismatch) -> LossScaleMismatch:
        # Where another trainer is wrong, the sum of this one can be used again.
        dropped = self._accumulation.count if error.slot == self._membership.config.rank else 0
        if dropped:
            self._accumulation.discard()
        return self.scale.advised(error, dropped_text(dropped) if dropped else "")

    def show_rates(self, param_groups: list[dict[str, Any]]) -> None:
        """Puts the last round's values into param_groups, where a schedule decides them."""
        if self._membership.config.lr_schedule is not None:
            used = self._membership.attached("show_rates").policy["rates"]
            self.rates.show(param_groups, self._membership.manifest.service_groups, used)

    def _ended(self, param_groups: list[dict[str, Any]], applied: bool) -> None:
        self._accumulation.clear(self._membership.stepped)
        self.skipped += not applied
        self.show_rates(param_groups)

    def upload(self) -> None:
        """Makes the parameters' present values the service's."""
        entries = self._membership.entries
        state = self._user_state()
        weights = [buffers.edited_weight_address(e) for e in entries]
        session = self._membership.session
        with session.interrupts_last():
            try:
                with explained():
                    session.upload(weights, state, keep=entries)
            finally:
                self._received(entries)

    def load(self, state: load.State, fingerprint: bytes) -> None:
        """Makes `state` the service's: one round per plane; the last brings the step counts, and
        the position of the schedule where the state has one.

        fingerprint: of the state. A process in the seat of an interrupted one continues after that
        one's planes, as the other trainers do.
        """
        entries, session = self._membership.entries, self._membership.session
        before = self._membership.loading
        user = self._user_state()
        done = before.planes if before is not None and before.fingerprint == fingerprint else 0
        weights = [buffers.weight_address(e) for e in entries]
        steps = [state.of(e).step for e in entries]
        try:
            for i, (array, low, bits, last) in enumerate(load.planes(state, entries)):
                if i < done:
                    continue
                so_far = user_state.Loading(fingerprint, i + 1)
                with session.interrupts_last():
                    session.upload_state(
                        array,
                        low,
                        [buffers.plane_address(b) for b in bits],
                        weights,
                        steps if last else [],
                        max(steps) if last else 0,
                        state.schedule_index if last else None,
                        user if last else user_state.encode_loading(user, so_far),
                        keep=(entries, state, bits),
                    )
            self._hyper = []  # The state has buffers of its own, whatever the steps before did.
        finally:
            self._received(entries)

    def fetch_weights(self) -> None:
        """Receives all weights again, dropping edits made to the parameters."""
        session = self._membership.attached("fetch_weights")
        entries = self._membership.entries
        addresses = [buffers.weight_address(e) for e in entries]
        session.fetch_weights(addresses, keep=entries)
        self._received(entries)

    def _received(self, entries: list[Entry]) -> None:
        buffers.received(entries)
        self._membership.edits.begin(entries)

    def _user_state(self) -> bytes:
        # The value that the round commits. An earlier interrupted load is then over.
        state = user_state.encode(self._membership.user_state)
        if self._membership.place_now is not None:
            state = user_state.encode_place(state, self._membership.place_now())
        self._membership.loading = None
        return state

    def _bits_of_silent(
        self, entries: list[Entry], lent: list[tuple[int, Any]]
    ) -> list[tuple[Entry, torch.Tensor]]:
        # Other trainers' gradients may step a tensor for which this one has none; only the weights
        # that come back tell.
        if self._membership.alone:
            return []
        silent = [e for e, (address, _) in zip(entries, lent) if not address]
        return [(e, buffers.weight_bits(e)) for e in silent]

    def _look_for_ddp(self, entries: list[Entry]) -> None:
        # Once: DDP is there before the first backward pass.
        if self._equal is not None:
            return
        membership, world = self._membership, self._membership.world_size
        said = membership.config.gradients == "reduced"
        equal = said or reduced.by_ddp((e.param for e in entries), world)
        if equal and membership.shares is not None:
            raise BadArgument(
                "the model is in DDP, which has averaged the gradients of all ranks already; "
                "collective= would add them up once more. Leave DDP out, or collective=",
                job=membership.config.job,
            )
        self._equal = equal
        if self._equal and not said and not membership.alone:
            warn(
                f"the model is in DDP, so all {world} trainers push the same gradient; with "
                'gradients="reduced", or "auto", one of them pushes for all, in a new job'
            )

    def _look_for_local_clips(self, lent: list[tuple[int, Any]]) -> None:
        membership, scaled = self._membership, self.scale.counts
        exact = (membership.alone or self._equal) and not scaled
        if self._clip_watch.over or exact or membership.config.max_grad_norm > 0:
            return
        gradients = [g for _, g in lent if g is not None and g.is_floating_point()]
        if self._clip_watch.saw(gradients):
            warn(
                "all gradients of this trainer have one norm, as clip_grad_norm_ before step() "
                f"leaves them. {_CLIPS_SCALED if scaled else _CLIPS_OWN}; for that pass "
                "max_grad_norm= to the optimizer instead"
            )


_CLIPS_OWN = "With several trainers that clips each one's own gradient, not their mean"
_CLIPS_SCALED = "That clips gradients which are still multiplied by the loss scale, not their mean"


def _changed(before: list[tuple[Entry, torch.Tensor]]) -> list[Entry]:
    return [e for e, bits in before if not torch.equal(bits, buffers.weight_bits(e))]
