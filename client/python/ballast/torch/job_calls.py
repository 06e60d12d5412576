"""A script's requests to the job between rounds: its state, its weights, a snapshot, the end.

Comes from: ballast.torch.service_optimizer, which derives from it. Goes to: ballast.torch.export,
ballast.torch.membership, ballast.control.
Thread safety: any thread; a call waits for those of other threads, step() among them.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from ballast import _closed_jobs, control
from ballast.errors import BadArgument, BallastError, NameInUse, at_border
from ballast.session import Session
from ballast.torch import export
from ballast.torch.job_view import JobView
from ballast.torch.turns import Turn, in_turn

KEEP_MAX = 2**32 - 1  # of snapshot(), as SnapshotRequest has it
# How long another snapshot of the job is waited for, and the time between two looks.
_BUSY_WAIT_S = 600.0
_LOOK_FIRST_S, _LOOK_MAX_S = 0.05, 1.0


class JobCalls(JobView):
    """The calls of ServiceOptimizer that take no part in a round."""

    _turn: Turn

    @at_border
    @in_turn
    def close(self, delete: bool = False) -> None:
        """Says that this trainer takes no further round. Idempotent; also done at normal exit.

        delete: also removes the job from the servers' disks, with the last trainer that closes so;
        its snapshots stay. Else a durable job stays there, for `resume` and ballastctl. Of those
        with made-up names (no job=, no BALLAST_JOB, no --job of ballast-run) that a process has
        closed, the newest eight stay.
        """
        membership = self._membership
        membership.leave()
        if membership.session is None or membership.config.durability == "none":
            return
        if delete:
            _closed_jobs.delete(membership.config)
        else:
            _closed_jobs.note(membership.config)

    @at_border
    @in_turn
    def export_state(self) -> dict[str, Any]:
        """The kind's fp32 arrays and step counts as new CPU tensors; see ballast.torch.export.

        Between rounds; downloads 4 bytes per parameter and array. After an interrupt (Ctrl-C) in
        step() it takes the seat in the job again, and gives the state of the finished rounds.
        Raises BadArgument before the first step().
        """
        session, manifest = self._membership.attached("export_state"), self._membership.manifest
        keys = self._kind.arrays(self._membership.options)
        return export.export(session, manifest, self.param_groups, self._kind, keys)

    @at_border
    @in_turn
    def snapshot(self, name: str, keep: int = 0) -> int:
        """Keeps the state after this step on the servers' disk, under a name.

        One rank calls it, between steps: `if rank == 0: opt.snapshot("warm")`. Returns when all of
        it survives, with the number of rounds it has; the other ranks continue until they need this
        one. Where all ranks call it after the same step, all get the one snapshot. keep: how many
        of the job's newest snapshots stay, older ones are removed; 0: all. Needs a durable job and,
        with several servers, their `storage.snapshot_dir`. Raises BadArgument for an invalid name,
        NameInUse where a snapshot of another round has it, OverBudget, Unsupported; then
        nothing is left of it.
        """
        if not isinstance(name, str):
            raise BadArgument(f"snapshot(): name={name!r} must be a str")
        whole = isinstance(keep, int) and not isinstance(keep, bool)
        if not whole or not 0 <= keep <= KEEP_MAX:
            raise BadArgument(f"snapshot(): keep={keep!r} must be an int in 0..{KEEP_MAX}")
        return _snapshot(self._membership.attached("snapshot"), name, keep)

    @at_border
    @in_turn
    def fetch_weights(self) -> None:
        """Receives all weights from the service again, dropping edits made to the parameters."""
        with torch.no_grad():
            self._rounds.fetch_weights()


def _snapshot(session: Session, name: str, keep: int) -> int:
    """The snapshot of this round, whichever rank takes it. Waits for one in progress."""
    config = session.config
    give_up = time.monotonic() + _BUSY_WAIT_S * config.time_scale
    look_s = _LOOK_FIRST_S
    while True:
        try:
            return session.snapshot(name, keep)
        except NameInUse:
            there = [one for one in control.of(config).snapshots(config.job) if one["name"] == name]
            # The servers count the next round.
            if [one["round"] - 1 for one in there] != [session.round]:
                raise
            return session.round
        except BallastError as error:
            if error.reason != "JOB_BUSY" or time.monotonic() >= give_up:
                raise
        time.sleep(look_s)
        look_s = min(2 * look_s, _LOOK_MAX_S)
