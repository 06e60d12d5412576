"""Ends sessions when the process ends: Leave after success, silence after a failure.

Comes from: ballast.session. Goes to: Session.leave / Session.leave_at_exit.
A script that ends by an unhandled exception, or with an exit code other than 0, must not look as if
it had finished: then no Leave is sent, and the other trainers get TRAINER_LOST. No Python code
learns that code, so the extension module decides, when Python has shut down. os._exit() runs no
exit handler, so that it is replaced. Forked children end nothing (Session checks the pid).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from typing import Any

_sessions: weakref.WeakSet[Any] = weakref.WeakSet()
_registered = False
_exit = os._exit


def track(session: Any) -> None:
    """Ends `session` at interpreter exit unless it has ended before."""
    global _registered
    _sessions.add(session)
    if not _registered:
        _registered = True
        atexit.register(_at_exit)
        os._exit = _leave_and_exit


def end(session: Any) -> None:
    """For a weakref.finalize of the session's user. Never raises: this may run during shutdown.

    Leaves at once, or at the end of the process when the script is over.
    """
    try:
        if _called_by_nobody():
            session.leave_at_exit()
        else:
            session.leave()
    except Exception as error:  # a traceback here would hide the message for the user
        print(f"ballast: closing job {session.config.job!r}: {error}", file=sys.stderr)


def open_sessions() -> int:
    """How many jobs this process is in."""
    return sum(not session.ended for session in list(_sessions))


def _called_by_nobody() -> bool:
    # A SystemExit that ends the script frees the script's variables before the exit handlers run,
    # when all frames of the script are gone: below this one there are end() and weakref's.
    try:
        sys._getframe(3)
    except ValueError:
        return True
    return False


def _at_exit() -> None:
    for session in list(_sessions):
        session.leave_at_exit()


def _leave_and_exit(status: int) -> None:
    """os._exit() of a process with sessions: exit code 0 leaves here, too."""
    if isinstance(status, int) and status & 0xFF == 0:
        for session in list(_sessions):
            with contextlib.suppress(BaseException):  # nothing keeps os._exit() from its end
                session.leave()
    _exit(status)
