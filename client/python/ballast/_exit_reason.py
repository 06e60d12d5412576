"""Tells ballast-run why a trainer ends when starting it again would end the same way.

Comes from: `import ballast`, in a process that ballast-run started. Goes to: the file that
BALLAST_LAST_WORDS names, {"pid", "reason", "text"}, read by ballast.launcher.trainers.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

VARIABLE = "BALLAST_LAST_WORDS"
# Reasons that neither time nor another attempt cures: something must be changed first.
HOPELESS = frozenset(
    "BAD_ARGUMENT BAD_HYPERPARAM BAD_SPEC INIT_MISMATCH LAYOUT_MISMATCH NAME_IN_USE OVER_BUDGET "
    "OVER_QUOTA PROTOCOL_MISMATCH SERVER_REMOVED SPEC_MISMATCH STATE_LOST UNKNOWN_JOB "
    "UNSUPPORTED".split()
)


def why_hopeless(error: BaseException) -> str | None:
    """The reason why a script that ends with `error` would do so again; None: it may not."""
    if isinstance(error, (ImportError, SyntaxError)):
        return type(error).__name__
    reason = getattr(error, "reason", None)
    return reason if reason in HOPELESS else None


def listen() -> None:
    """Has the file written when an exception ends this process; a child of it writes nothing."""
    path, pid, shown = os.environ.get(VARIABLE), os.getpid(), sys.excepthook
    if not path:
        return

    def hook(kind, error, trace) -> None:
        reason = why_hopeless(error)
        if reason is not None and os.getpid() == pid:
            told = {"pid": pid, "reason": reason, "text": str(error)}
            with contextlib.suppress(OSError), open(path, "w") as file:
                json.dump(told, file)
        shown(kind, error, trace)

    sys.excepthook = hook
