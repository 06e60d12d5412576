"""Calls of one optimizer, one at a time, whichever threads make them.

Comes from: ballast.torch.service_optimizer and job_calls. Needs no torch. Thread safety: any
thread.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_Call = TypeVar("_Call", bound=Callable[..., Any])


class Turn:
    """`with turn:` waits for the calls that other threads make, in the order of their coming.

    The thread whose turn it is may take it again, as a signal's handler in the middle of step()
    does. A forked process has no turn: it has the lock, but not the thread that holds it, and its
    calls are refused anyway.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._held = threading.RLock()
        # The holder of this one is next. Without it a thread calling in a loop starves the others.
        self._next = threading.RLock()
        self._thread = 0  # that whose turn it is; 0: none
        self._depth = 0

    def __enter__(self) -> None:
        if os.getpid() != self._pid:
            return
        if self._thread == threading.get_ident():
            self._held.acquire()
        else:
            with self._next:
                self._held.acquire()
        self._thread = threading.get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._pid:
            return
        self._depth -= 1
        if self._depth == 0:
            self._thread = 0
        self._held.release()


def in_turn(call: _Call) -> _Call:
    """Decorates a method of a class with a Turn in `_turn`: a call waits for those of other
    threads."""

    @functools.wraps(call)
    def waits(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._turn:
            return call(self, *args, **kwargs)

    return waits
