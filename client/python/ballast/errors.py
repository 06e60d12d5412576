"""Typed errors of the Python package.

Comes from: the servers' ErrorDetail through the extension module, or the package itself. Goes to:
user code. `reason` is the name of a value of ballast.v1.Reason (proto/ballast/v1/types.proto)
without its REASON_ prefix; it is the contract, the text is for people and may change.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

__all__ = [
    "BallastError", "AttachTimeout", "BadArgument", "BadHyperparam", "BadSpec", "Closed",
    "GradientMismatch", "HyperparamMismatch", "InitMismatch", "JobFailed", "JobFinished",
    "LayoutMismatch", "LossScaleMismatch", "NameInUse", "NoIdentity", "NotPermitted",
    "NonfiniteGradient", "OverBudget", "OverQuota", "ProtocolMismatch", "Replaced",
    "ServerLost", "ServerRemoved", "Recovering", "RendezvousEnded", "ShuttingDown", "StateLost",
    "StorageFailed", "SlotTaken", "SpecMismatch", "TrainerLeft", "TrainerLost", "UnknownJob",
    "Unreachable", "Unsupported", "VoteMismatch", "WeightsEdited",
]  # fmt: skip


class BallastError(RuntimeError):
    """Base of every error of Ballast.

    code: name of the absl status code, for example "UNAVAILABLE".
    reason: name of the Reason, for example "TRAINER_LOST"; the class follows from it.
    job, round: the job and round concerned; "" and 0 when none.
    slot, server: the trainer or server concerned; -1 when none.
    """

    default_code = "UNKNOWN"
    default_reason = "UNSPECIFIED"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        reason: str | None = None,
        job: str = "",
        round: int = 0,
        slot: int = -1,
        server: int = -1,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.reason = reason or self.default_reason
        self.job = job
        self.round = round
        self.slot = slot
        self.server = server

    def __str__(self) -> str:
        return f"{self.message} [{self.reason}]"

    def followed_by(self, text: str) -> Any:
        """The same error, whose text has `text` after it."""
        rebuild, (kind, message, fields) = self.__reduce__()
        return rebuild(kind, f"{message}. {text}", fields)

    def __reduce__(self):
        # The default would call the class without its keywords and lose all fields.
        fields = {k: getattr(self, k) for k in ("code", "reason", "job", "round", "slot", "server")}
        return _rebuild, (type(self), self.message, fields)


def _rebuild(kind: type[BallastError], message: str, fields: dict) -> BallastError:
    return kind(message, **fields)


class BadArgument(BallastError, ValueError):
    """An argument, environment variable or call is wrong. Correct the script."""

    default_code = "INVALID_ARGUMENT"
    default_reason = "BAD_ARGUMENT"


class BadSpec(BadArgument):
    """The job cannot exist as described (names, shapes, limits). Correct the model or options."""

    default_reason = "BAD_SPEC"


class BadHyperparam(BadArgument):
    """A hyper-parameter of this round is out of range or not finite. Nothing was applied."""

    default_reason = "BAD_HYPERPARAM"


class Unsupported(BallastError, NotImplementedError):
    """This version does not support the request; the text names it and the alternative."""

    default_code = "UNIMPLEMENTED"
    default_reason = "UNSUPPORTED"


class WeightsEdited(BallastError):
    """A parameter was changed outside the optimizer after attach; the service has the old value."""

    default_code = "FAILED_PRECONDITION"
    default_reason = "WEIGHTS_EDITED"


class Closed(BallastError):
    """The optimizer was closed, or belongs to the process this one was forked from."""

    default_code = "FAILED_PRECONDITION"
    default_reason = "CLOSED"


class SpecMismatch(BallastError):
    """This trainer describes the job differently from the first one; the text names the field."""

    default_reason = "SPEC_MISMATCH"


class InitMismatch(BallastError):
    """Initial or uploaded weights differ between trainers, or one uploads where another steps.

    Seed equally, or pass init="broadcast"; change weights on all trainers alike.
    """

    default_reason = "INIT_MISMATCH"


class LayoutMismatch(BallastError):
    """Trainers disagree about the tensors added, or a round was pushed in another layout."""

    default_reason = "LAYOUT_MISMATCH"


class HyperparamMismatch(BallastError):
    """Trainers sent different hyper-parameters for one round. Nothing was applied."""

    default_reason = "HYPERPARAM_MISMATCH"


class GradientMismatch(BallastError):
    """Gradients differ that gradients="reduced" calls equal on all ranks. Nothing was applied."""

    default_code = "FAILED_PRECONDITION"
    default_reason = "GRADIENT_MISMATCH"


class LossScaleMismatch(BallastError):
    """The gradients are multiplied by another scale than the job's. Nothing was applied."""

    default_code = "FAILED_PRECONDITION"
    default_reason = "LOSS_SCALE_MISMATCH"


class RendezvousEnded(BallastError):
    """A rank gave a communicator up while others waited for it, or newer ones were begun."""

    default_code = "ABORTED"
    default_reason = "RENDEZVOUS_ENDED"


class NameInUse(BallastError):
    """A job of this name exists. Choose a fresh name, or resume="auto" to continue it."""

    default_reason = "NAME_IN_USE"


class NoIdentity(BallastError):
    """The servers want a certificate or a token that names this caller. See docs/security.md."""

    default_code = "UNAUTHENTICATED"
    default_reason = "NO_IDENTITY"


class NotPermitted(BallastError):
    """The role of this caller's certificate or token may not do this. See docs/security.md."""

    default_code = "PERMISSION_DENIED"
    default_reason = "NOT_PERMITTED"


class SlotTaken(BallastError):
    """A live process has this rank. End it, or check RANK / BALLAST_RANK."""

    default_reason = "SLOT_TAKEN"


class UnknownJob(BallastError):
    """The servers do not know the job (any more)."""

    default_reason = "UNKNOWN_JOB"


class ProtocolMismatch(BallastError):
    """Client and server versions do not overlap. Upgrade the older side."""

    default_reason = "PROTOCOL_MISMATCH"


class OverBudget(BallastError):
    """The job does not fit the servers' memory; the text has the numbers."""

    default_reason = "OVER_BUDGET"


class OverQuota(BallastError):
    """The tenant may not have more of something; the text says of what, with both numbers."""

    default_reason = "OVER_QUOTA"


class AttachTimeout(BallastError, TimeoutError):
    """Not all trainers arrived in time; the text names the missing slots."""

    default_reason = "ATTACH_TIMEOUT"


class Unreachable(BallastError, ConnectionError):
    """No server answered at the endpoints. Check the addresses and that ballastd runs."""

    default_reason = "UNREACHABLE"


class ServerLost(BallastError, ConnectionError):
    """A server (`server`) died or is not reached, a durable job's for reconnect_timeout."""

    default_reason = "SERVER_LOST"


class ServerRemoved(BallastError):
    """cluster.peers lacks a server that the job has state on; the text names it."""

    default_reason = "SERVER_REMOVED"


class TrainerLost(BallastError):
    """Another trainer died; `slot` says which. Jobs with durability wait for it instead."""

    default_reason = "TRAINER_LOST"


class Replaced(BallastError):
    """Another process was started for this rank and has its seat. End this one; nothing is lost.

    If both were meant to run, give them different ranks.
    """

    default_code = "FAILED_PRECONDITION"
    default_reason = "WRONG_INCARNATION"


class TrainerLeft(BallastError):
    """Another trainer finished while this one still runs rounds; `slot` says which."""

    default_reason = "TRAINER_LEFT"


class JobFailed(BallastError):
    """The job failed earlier; the text repeats why."""

    default_reason = "JOB_FAILED"


class JobFinished(BallastError):
    """All trainers have left the job; it takes no further rounds."""

    default_reason = "JOB_FINISHED"


class VoteMismatch(BallastError):
    """Two servers saw different contributions for one round: a defect, please report it."""

    default_reason = "VOTE_MISMATCH"


class ShuttingDown(BallastError):
    """A server is being stopped. Start it again, or wait and re-run."""

    default_reason = "SHUTTING_DOWN"


class StateLost(BallastError):
    """A committed round cannot be rebuilt from the disks; the text names the damaged part."""

    default_reason = "STATE_LOST"


class StorageFailed(BallastError):
    """A disk refused a write or a flush. Start the server again; nothing committed is lost."""

    default_reason = "STORAGE_FAILED"


class NonfiniteGradient(BallastError, FloatingPointError):
    """The round was halted: a gradient is NaN or Inf; the text names tensor, index and slot.

    Every trainer gets it in the same step. Nothing was applied, and step() may be called again.
    """

    default_code = "ABORTED"
    default_reason = "NONFINITE"


class Recovering(BallastError):
    """A server is still starting, or the job is changing. Wait and ask again."""

    default_reason = "RECOVERING"


_Call = TypeVar("_Call", bound=Callable[..., Any])
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this package."""
    if trace is None:
        return None
    rest = _outside(trace.tb_next)
    if os.path.abspath(trace.tb_frame.f_code.co_filename).startswith(_HERE):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def at_border(call: _Call) -> _Call:
    """Decorates functions that scripts call: a BallastError's traceback shows the script's lines
    only.

    Frames of this package add nothing to the text for a script's author. Lines of the script called
    from here, such as a closure's, stay.
    """

    @functools.wraps(call)
    def bordered(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except BallastError as error:
            raise error.with_traceback(_outside(error.__traceback__))

    return bordered


def warn(message: str) -> None:
    """A UserWarning at the script's line, whatever called this on the way there."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _ours(frame: FrameType) -> bool:
    # torch's own wrappers of step() too, and those of its schedulers.
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("ballast", "torch")


_BY_REASON = {
    kind.default_reason: kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, BallastError) and kind is not BallastError
}


def from_status(
    code: str, reason: str, message: str, job: str, round: int, slot: int, server: int
) -> BallastError:
    """The exception for one status of the C++ client. Called by the extension module.

    An unknown reason (a newer server's) gives a plain BallastError that carries its name.
    """
    kind = _BY_REASON.get(reason, BallastError)
    place = {"job": job, "round": round, "slot": slot, "server": server}
    return kind(message, code=code, reason=reason, **place)
