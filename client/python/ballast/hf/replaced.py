"""A method of Accelerate's that does more for some optimizers, while there are any.

Trainer and its subclasses offer no other place between the loss and backward(), or between the
gradients and their norm. Comes from: ballast.hf.norms and ballast.hf.scaling. Goes to:
the class accelerate.Accelerator. Thread safety: used by Trainer's thread.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import accelerate
import torch

_REAL = "_ballast_real"  # of the function in the place of Accelerate's


class Replaced:
    """A method of accelerate.Accelerator, replaced while one of its optimizers needs it."""

    def __init__(self, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """make: Accelerate's own function to the one in its place."""
        self._name = name
        self._make = make
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Counts for this optimizer until end(), or until the optimizer is gone."""
        self._optimizers.add(optimizer)
        weakref.finalize(optimizer, self._restore).atexit = False
        real = getattr(accelerate.Accelerator, self._name)
        if not hasattr(real, _REAL):
            ours = functools.wraps(real)(self._make(real))
            setattr(ours, _REAL, real)
            setattr(accelerate.Accelerator, self._name, ours)

    def end(self, optimizer: torch.optim.Optimizer) -> None:
        """Accelerate treats this optimizer as it does by itself."""
        self._optimizers.discard(optimizer)
        self._restore()

    def living(self) -> list[torch.optim.Optimizer]:
        """The optimizers that it counts for."""
        return list(self._optimizers)

    def _restore(self) -> None:
        real = getattr(getattr(accelerate.Accelerator, self._name), _REAL, None)
        if real is not None and not self.living():
            setattr(accelerate.Accelerator, self._name, real)
