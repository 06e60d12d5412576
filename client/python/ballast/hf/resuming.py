"""An optimizer that goes back to the round of a saved state_dict(), as Trainer's resume needs it.

Comes from: ballast.hf.factory and callback. Goes to: ballast._rejoin. Trainer saves the optimizer's
state_dict(), which names job and round; the callback keeps a snapshot of that round on the servers.
On a resume all trainers load the dict before the first forward pass: here the snapshot becomes a
job, and its weights replace those of the folder, which are roundings where parameters have 16 bits.
A folder written with torch's optimizer has moments in place of job and round.
Thread safety: as ballast.torch.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import torch

from ballast import _rejoin
from ballast.errors import BadArgument, NameInUse, Unsupported, at_border, warn
from ballast.hf import schedule
from ballast.pauses import say
from ballast.torch.service_optimizer import ServiceOptimizer


class ResumingOptimizer(ServiceOptimizer):
    """Mixed into a class of ballast.torch; see resuming()."""

    # Set by ballast.hf.Callback, without which Trainer would clip and schedule by itself.
    managed = False
    # Set by ballast.hf.scaling, while Accelerator.backward() multiplies by the loss scale.
    scaled_at_backward = False
    # Job and round of the dict loaded last, and the optimizer's own at that time.
    _came_from: tuple[int, int, int, int] | None = None
    _said_unmanaged = False

    @property
    def closed(self) -> bool:
        """Whether it has left its job."""
        session = self._membership.session
        return session is not None and session.ended

    def keep_round(self, keep: int = 0) -> None:
        """Keeps the state of this round, so that this moment's state_dict() can be loaded later.

        Rank 0 calls it, between steps. keep: as snapshot() has it. Raises as snapshot().
        """
        with contextlib.suppress(NameInUse):  # The name has job and round: the same state.
            self.snapshot(_name(self.job_id, self.round), keep)

    def reopen(self) -> None:
        """Takes the seat in the job that it has left again; the parameters keep their values.

        On all trainers. Raises as attach(), and BadArgument where durability none ended the job.
        """
        if self.durability == "none":
            raise BadArgument(
                "a second train() needs a job that is still there; durability none ended it"
            )
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        _rejoin.join(self, self.job)
        with torch.no_grad():
            if all(torch.equal(p, value) for p, value in zip(parameters, before)):
                return
            for p, value in zip(parameters, before):
                p.copy_(value)
        self.upload_weights()

    @at_border
    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """As ServiceOptimizer.scale(). BadArgument where Accelerator.backward() multiplies, too."""
        if self.scaled_at_backward:
            raise BadArgument(
                "under Trainer self.accelerator.backward(loss) multiplies by the loss scale; give "
                "it the loss as it is, without scale()"
            )
        return super().scale(loss)

    @at_border
    def state_dict(self) -> dict[str, Any]:
        """As ServiceOptimizer.state_dict(). Of a running job without the callback it says so, once
        in a warning, and in the dict for the resume that will find no snapshot."""
        packed = super().state_dict()
        if self.managed or self.job_id == 0:
            return packed
        packed["ballast"]["callback"] = False
        if not self._said_unmanaged:
            self._said_unmanaged = True
            warn(
                f"a checkpoint is written at round {self.round} without ballast.hf.Callback(): it "
                "has the weights, and resume_from_checkpoint will be refused, because no snapshot "
                "has masters and moments; pass callbacks=[ballast.hf.Callback()] to Trainer"
            )
        return packed

    @at_border
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes back to the job and round that the dict names, with their weights; on all trainers.

        The state becomes a job of its own. A dict of the present round, or of an optimizer that had
        not attached, changes hyper-parameters only. One with the state of a torch optimizer of this
        kind is loaded as load_export() does it, with the parameters' present values. Raises
        BadArgument where the servers do not have the state, and as ServiceOptimizer's method and
        load_export().
        """
        if self._membership.config.lr_schedule is not None:
            schedule.release(self.param_groups)
        whole = state_dict if isinstance(state_dict, Mapping) else {}
        saved = whole.get("ballast")
        if saved is None and whole.get("state"):
            self._take_over(whole)
            return
        if not isinstance(saved, Mapping) or not self._is_elsewhere(saved):
            super().load_state_dict(state_dict)
            return
        wanted = (int(saved["job_id"]), int(saved["round"]))
        if self._came_from != (*wanted, self.job_id, self.round):
            fork = _rejoin.agree(self, lambda: self._fork(saved, wanted), "", "")
            _rejoin.join(self, fork.job)
            self._came_from = (*wanted, self.job_id, self.round)
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})

    def _take_over(self, whole: Mapping[str, Any]) -> None:
        """Masters are the parameters, into which Trainer has put the folder's weights by now."""
        groups = whole.get("param_groups")
        if isinstance(groups, list) and len(groups) > len(self.param_groups):
            # Trainer makes a group for parameters without weight decay where there are none, too.
            groups = [g for g in groups if not isinstance(g, Mapping) or g.get("params") != []]
        source = {**whole, "param_groups": groups}
        index = None
        if self._membership.config.lr_schedule is not None:
            checked, _ = self._state_of(source)
            index = max((one.step for one in checked.tensors.values()), default=0) - 1
        if self.closed:
            self.reopen()
        self.load_export(source, index)
        say(self.rank, f"job {self.job!r} continues a torch optimizer after {self.opt_step} steps, "
            "with its moments")  # fmt: skip

    def _is_elsewhere(self, saved: Mapping[str, Any]) -> bool:
        # Anything but a handle goes to the base class, which says why.
        at = saved.get("job_id"), saved.get("round")
        whole = all(isinstance(number, int) for number in at) and "job" in saved
        return whole and bool(at[0]) and at != (self.job_id, self.round)

    def _fork(self, saved: Mapping[str, Any], wanted: tuple[int, int]) -> _rejoin.Fork:
        job, snapshot, round = str(saved["job"]), _name(*wanted), wanted[1]
        if self._membership.config.durability == "none":
            raise Unsupported(
                "a run of durability none cannot be resumed from a checkpoint; use "
                'durability="power" or "process"'
            )
        found = [one["name"] for one in _rejoin.control_of(self).snapshots(job)]
        if snapshot not in found and saved.get("callback") is False:
            raise BadArgument(
                f"the checkpoint of job {job!r} after round {round} was written without "
                "ballast.hf.Callback(), so no snapshot has its masters and moments. Begin a new "
                "run with its weights (from_pretrained(folder), and train() without "
                "resume_from_checkpoint), with callbacks=[ballast.hf.Callback()]"
            )
        if snapshot not in found:
            raise BadArgument(
                f"the checkpoint is of job {job!r} after round {round}, of which the servers have "
                f"no snapshot {snapshot!r} (they have: {', '.join(found) or 'none'}). "
                "ballast.hf.Callback() takes one with each checkpoint; its keep= removes old ones"
            )
        return _rejoin.fork(self, snapshot, job, snapshot, round)


def _name(job_id: int, round: int) -> str:
    return f"trainer-{job_id:016x}-{round}"


@functools.cache
def resuming(of: type[ServiceOptimizer]) -> type[ResumingOptimizer]:
    """The class `of` of ballast.torch, whose load_state_dict() goes back."""
    return type(of.__name__, (ResumingOptimizer, of), {"__doc__": of.__doc__})
