"""Jobs that a script has closed: removed when it says so, or when trials without a name pile up.

Comes from: ballast.torch.job_calls. Goes to: ballast.control. Needs no torch. Thread safety: any
thread.
"""

from __future__ import annotations

import dataclasses

from ballast import control, job_name
from ballast.config import JobConfig
from ballast.errors import BallastError, warn
from ballast.pauses import say

KEPT = 8  # of a process's closed jobs with made-up names
PATIENCE_S = 5.0  # for servers of an old job, which may be gone

_closed: list[JobConfig] = []  # the oldest first
_told = False


def delete(config: JobConfig) -> None:
    """Removes the job that a trainer left, unless others are still in it: the last one removes it.

    Raises the servers' errors, such as NotPermitted and Unreachable.
    """
    try:
        control.of(config).delete_job(config.job)
    except BallastError as error:
        if error.reason not in ("JOB_BUSY", "UNKNOWN_JOB"):
            raise


def note(config: JobConfig) -> None:
    """A trainer has left this job, which stays.

    Twenty trials in one process, each with an optimizer of its own, would otherwise leave twenty
    jobs with names that no script knows.
    """
    global _told
    if config.resume != "never":  # A script that knows a made-up name may ask for it again.
        _closed[:] = [one for one in _closed if one.job != config.job]
    unknown = config.resume == "never" and job_name.is_made_up(config.job)
    if not unknown or config.rank != 0 or any(one.job == config.job for one in _closed):
        return
    _closed.append(config)
    if len(_closed) <= KEPT:
        return
    oldest = _closed.pop(0)
    if not _told:
        _told = True
        say(0, f"{oldest.job} is removed: of closed jobs without job=, the newest {KEPT} stay")
    try:
        patience = min(PATIENCE_S, oldest.reconnect_timeout)
        delete(dataclasses.replace(oldest, reconnect_timeout=patience))
    except BallastError as error:
        warn(f"a closed job stays on the servers: {error.message}")
