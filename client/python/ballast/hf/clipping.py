"""Trainer's max_grad_norm while the service clips: 0, so that no gradient is clipped twice.

Comes from: ballast.hf.callback and ballast.hf.factory. Goes to: the TrainingArguments. The script's
own value is kept next to it, in the same object, also after an error.
Thread safety: as the TrainingArguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_KEPT = "_ballast_max_grad_norm"


def written(args: Any) -> float:
    """max_grad_norm as the script wrote it; 0 for None."""
    return float(getattr(args, _KEPT, getattr(args, "max_grad_norm", None)) or 0.0)


def switch_off(args: Any) -> None:
    """Trainer clips no more."""
    if not hasattr(args, _KEPT):
        setattr(args, _KEPT, args.max_grad_norm)
    args.max_grad_norm = 0.0


def switch_on(args: Any) -> None:
    """Restores the script's own value."""
    if hasattr(args, _KEPT):
        args.max_grad_norm = getattr(args, _KEPT)
        delattr(args, _KEPT)


@contextlib.contextmanager
def undone(args: Any) -> Iterator[None]:
    """Inside, the script's own value can be read."""
    off = hasattr(args, _KEPT)
    switch_on(args)
    try:
        yield
    finally:
        if off:
            switch_off(args)
