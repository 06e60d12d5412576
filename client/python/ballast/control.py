"""An operator's requests to the servers, from a script: forks, and lists of snapshots and jobs.

Comes from: ballast.torch.job_calls, ballast._rejoin, ballast.deepspeed, ballast.hf. Goes to: the
extension module (client/cpp/ballast/admin.h), which asks the servers. Needs no torch. Thread
safety: any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ballast import backend
from ballast.config import JobConfig
from ballast.security import Security

# Waits are cut into slices so that Python runs its signal handlers (Ctrl-C) in between.
_SLICE_S = 0.1


class Control:
    """Calls to the servers of one job.

    endpoints: "host:port" of any of them. patience_s: how long a call is repeated while no server
    can be reached or servers are still starting; then it raises Unreachable. time_scale: stretches
    how long a server may take to answer. security: of the connections. Errors of the servers are
    raised by their reason, such as NameInUse and UnknownJob.
    """

    def __init__(
        self, endpoints: Sequence[str], patience_s: float, time_scale: float = 1.0,
        security: Security = Security(),
    ) -> None:
        self._where = {
            "endpoints": list(endpoints), "patience_s": patience_s, "time_scale": time_scale,
            "security": security.for_core(),
        }  # fmt: skip

    def jobs(self) -> list[dict[str, Any]]:
        """Durable jobs by name: "name", "job" (id), "state" ("running", or "resting": without
        trainers), "world", "round" (the next), "parameters", "open_streams" (attached trainers),
        "disk_bytes"."""
        return self._wait(backend.core().start_jobs(**self._where))

    def job(self, name: str) -> dict[str, Any] | None:
        """The durable job of that name, or None."""
        return next((job for job in self.jobs() if job["name"] == name), None)

    def delete_job(self, name: str) -> None:
        """Removes a job from the servers' disks; its snapshots stay.

        Raises UnknownJob, and BallastError of reason JOB_BUSY while trainers are attached.
        """
        self._wait(backend.core().start_delete_job(**self._where, job=name, force=False))

    def snapshots(self, job: str) -> list[dict[str, Any]]:
        """The snapshots of a job, oldest first; [] for an unknown one.

        "job", "name", "round" (the first one of a job made from it), "created_s" (since 1970),
        "bytes", "parameters", "world".
        """
        return self._wait(backend.core().start_snapshots(**self._where, job=job))

    def fork(self, job: str, snapshot: str, new: str, world: int) -> None:
        """Makes the job `new`, of `world` trainers, of a snapshot, which need not be copied.

        Raises NameInUse, UnknownJob, OverBudget. Repeated after a broken connection, it may raise
        NameInUse for the fork that its first try made.
        """
        made = {"job": job, "snapshot": snapshot, "new": new, "world": world, "share": True}
        self._wait(backend.core().start_restore(**self._where, **made))

    def delete_snapshot(self, job: str, snapshot: str) -> None:
        """Removes a snapshot; its forks stay. Raises UnknownJob when there is none."""
        self._wait(
            backend.core().start_delete_snapshot(**self._where, job=job, snapshot=snapshot)
        )

    def _wait(self, operation: Any) -> Any:
        try:
            while not operation.wait(_SLICE_S):
                pass
        except BaseException:
            operation.stop()  # after an interrupt; a failed one has ended
            raise
        return operation.result()


def of(config: JobConfig) -> Control:
    """Calls to the servers of a trainer's job."""
    patience_s = config.reconnect_timeout * config.time_scale
    return Control(config.endpoints, patience_s, config.time_scale, config.security)
