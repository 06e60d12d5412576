"""Backward passes that a script begins itself: what divides them, and what refuses unscaled ones.

Comes from: ballast.deepspeed.engine. An engine's outputs are views of the model's. A gradient that
comes into one of them is divided by the accumulation, unless the pass began in engine.backward(),
whose loss was divided. What one output contributes to another, such as logits to a loss, is not
divided twice, since that path does not go through the views. Thread safety: passes of several
threads are told apart; an engine is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.hooks import RemovableHandle

from ballast.errors import BadArgument

# The passes under way that carry a loss scale, by torch's numbers, and whether an engine has
# divided their loss, too.
_passes: dict[int, bool] = {}
# Those that have begun on this thread: a pass inside of one, as of a reentrant checkpoint, has a
# number of its own.
_here = threading.local()


class _Begun:
    """Counts the passes that begin at a loss. divided: whether that is the engine's work, too."""

    def __init__(self, divided: bool) -> None:
        self._divided = divided
        self._numbers: list[int] = []

    def begin(self, _: torch.Tensor) -> None:
        number = torch._C._current_graph_task_id()
        self._numbers.append(number)
        _passes[number] = self._divided
        _here.numbers = [*_under_way(), number]

    def end(self) -> None:
        for number in self._numbers:
            _passes.pop(number, None)
        self._numbers.clear()


@contextlib.contextmanager
def engines_own(loss: torch.Tensor) -> Iterator[None]:
    """Passes from this loss inside the block are engine.backward()'s: divided, and scaled."""
    begun = _Begun(divided=True)
    hook = loss.register_hook(begun.begin) if loss.requires_grad else None
    try:
        yield
    finally:
        begun.end()
        if hook is not None:
            hook.remove()


def scaled(loss: torch.Tensor) -> torch.Tensor:
    """A loss that the caller has multiplied by the scale: its passes are known as such."""
    begun = _Begun(divided=False)

    def begin(gradient: torch.Tensor) -> None:
        begun.begin(gradient)
        torch.autograd.Variable._execution_engine.queue_callback(begun.end)

    if loss.requires_grad:
        loss.register_hook(begin)
    return loss


def _under_way() -> list[int]:
    return [number for number in getattr(_here, "numbers", ()) if number in _passes]


def _kinds() -> list[bool]:
    """Of the present pass and those around it that are marked: whether the loss was divided."""
    numbers = {torch._C._current_graph_task_id(), *_under_way()}
    return [_passes[number] for number in numbers if number in _passes]


def outputs(value: Any, divisor: Callable[[], int], begins: Callable[[], None]) -> Any:
    """What a model returns, with a view in place of each tensor that has a graph.

    A gradient that comes into a view in a pass that is not of engine.backward() is divided by
    divisor(); begins() is called before. Containers that torch's pytree knows, and dataclasses, are
    made anew.
    """

    def divide(gradient: torch.Tensor) -> torch.Tensor | None:
        if any(_kinds()):
            return None
        begins()
        return gradient / divisor()

    def view(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            if part.grad_fn is None or part.layout != torch.strided:
                return part
            seen = part.view_as(part)
            seen.register_hook(divide)
            return seen
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            made = copy.copy(part)
            for field in dataclasses.fields(part):
                object.__setattr__(made, field.name, every(getattr(part, field.name)))
            return made
        return part

    def every(part: Any) -> Any:
        return _pytree.tree_map(view, part)

    return every(value)


class Guard:
    """Refuses passes without the loss scale that bring gradients to the parameters of an engine.

    unscaled: whether there was one since the last clear(); its gradients are there.
    """

    def __init__(self) -> None:
        self.unscaled = False
        self._hooks: dict[int, RemovableHandle] = {}
        weakref.finalize(self, _remove, self._hooks).atexit = False

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Looks at these, too, until close() or the end of this object."""
        mine = weakref.ref(self)

        def look(_: torch.Tensor) -> None:
            guard = mine()
            if guard is not None and not _kinds():
                guard.unscaled = True
                raise BadArgument(_UNSCALED)

        for parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._hooks:
                self._hooks[id(parameter)] = parameter.register_post_accumulate_grad_hook(look)

    def check(self) -> None:
        """BadArgument when gradients of such a pass would go into a round."""
        if self.unscaled:
            raise BadArgument(_UNSCALED)

    def close(self) -> None:
        _remove(self._hooks)


def _remove(hooks: dict[int, RemovableHandle]) -> None:
    for hook in hooks.values():
        hook.remove()
    hooks.clear()


_UNSCALED = (
    "loss.backward() of a loss without the loss scale: call engine.backward(loss), or "
    "engine.scale(loss).backward(). Its gradients count for nothing; call engine.zero_grad()"
)
