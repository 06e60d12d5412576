"""Ends sessions when the process ends: Leave after success, silence after a crash.

Comes from: ballast.session. Goes to: Session.leave / Session.abandon.
A script that ends by an unhandled exception must not look as if it had finished: then no Leave is
sent, and the other trainers get TRAINER_LOST. Forked children end nothing (Session checks the pid).
"""

from __future__ import annotations

import atexit
import sys
import weakref
from typing import Any

_sessions: weakref.WeakSet[Any] = weakref.WeakSet()
_registered = False


def track(session: Any) -> None:
    """Ends `session` at interpreter exit unless it has ended before."""
    global _registered
    _sessions.add(session)
    if not _registered:
        _registered = True
        atexit.register(_at_exit)


def crashed() -> bool:
    """Whether an unhandled exception is ending this script.

    Python sets sys.last_value (3.12: sys.last_exc) before it prints the traceback. An interactive
    session sets them at every error and goes on, so there they mean nothing.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return False
    return any(getattr(sys, name, None) is not None for name in ("last_exc", "last_value"))


def end(session: Any) -> None:
    """Leave, or abandon when the script crashed. Never raises: this runs during shutdown."""
    try:
        if crashed():
            session.abandon("the script ended with an exception")
        else:
            session.leave()
    except Exception as error:  # the process is ending; a traceback here would hide the real one
        print(f"ballast: closing job {session.config.job!r}: {error}", file=sys.stderr)


def _at_exit() -> None:
    for session in list(_sessions):
        end(session)
