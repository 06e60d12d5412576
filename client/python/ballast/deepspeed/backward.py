"""Backward passes that a script begins itself: their division, and the refusal of unscaled ones.

Comes from: ballast.deepspeed.engine. An engine's outputs have the memory of the model's, and a node
of their own in the graph. A gradient that comes into one of them is divided by the accumulation,
unless the pass began in engine.backward(), whose loss was divided. The contribution of one output
to another, such as logits to a loss, is not divided twice, since that path does not go through
these nodes. Thread safety: several threads may run passes; one thread at a time uses an engine.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.hooks import RemovableHandle

from ballast.errors import BadArgument

_Divide = Callable[[torch.Tensor], torch.Tensor]

# The passes under way that carry a loss scale, by torch's numbers, and whether an engine has
# divided their loss, too.
_passes: dict[int, bool] = {}
# The passes begun on this thread: a pass inside another, as of a reentrant checkpoint, has a number
# of its own.
_here = threading.local()


class _Begun:
    """Counts the passes that begin at a loss. divided: whether the engine divided their loss,
    too."""

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
    """For the current pass and the marked ones around it: whether the loss was divided."""
    numbers = {torch._C._current_graph_task_id(), *_under_way()}
    return [_passes[number] for number in numbers if number in _passes]


class _Divided(torch.autograd.Function):
    """The same memory, whose gradient divide() changes. A hook would be lost in an edit in place.

    alone: edits in place are allowed, and gradients go through them. Otherwise torch refuses them:
    other tensors have this memory, and their graphs would not know of the edit.
    """

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, divide: _Divide, alone: bool) -> torch.Tensor:
        ctx.divide = divide
        return part.detach() if alone else part.view_as(part)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.divide(gradient), None, None


def outputs(
    value: Any, given: Any, divisor: Callable[[], int], begins: Callable[[], None]
) -> Any:
    """A model's result for `given`, with each tensor with a graph replaced by one of the same
    memory.

    A gradient that comes into one in a pass not begun by engine.backward() is divided by divisor();
    begins() is called before. Edits in place are refused by torch where two outputs, or
    one and a tensor of `given` or a parameter, share memory. Containers that torch's pytree knows,
    and dataclasses, are copied.
    """

    def divide(gradient: torch.Tensor) -> torch.Tensor:
        if any(_kinds()):
            return gradient
        begins()
        return gradient / divisor()

    parts: dict[int, torch.Tensor] = {}
    _each(value, lambda part: parts.setdefault(id(part), part))
    users = Counter(map(_memory, parts.values()))
    users.update(_memory(x) for x in _pytree.tree_leaves(given) if _has_graph(x))
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # one tensor: one output

    def divided(part: torch.Tensor) -> torch.Tensor:
        if id(part) not in made:
            alone = users[_memory(part)] == 1 and not _of_leaf(part)
            made[id(part)] = part, _Divided.apply(part, divide, alone)
        return made[id(part)][1]

    return _each(value, divided)


def _has_graph(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.grad_fn is not None
        and value.layout == torch.strided
    )


def _memory(part: torch.Tensor) -> int:
    return part.untyped_storage()._cdata


def _of_leaf(part: torch.Tensor) -> bool:
    """Whether it is a view of a parameter, which an edit in place would change."""
    return part._is_view() and part._base is not None and part._base.is_leaf


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of the value, with change() of its tensors with a graph."""

    def one(part: Any) -> Any:
        if _has_graph(part):
            return change(part)
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            made = copy.copy(part)
            for field in dataclasses.fields(part):
                object.__setattr__(made, field.name, _each(getattr(part, field.name), change))
            return made
        return part

    return _pytree.tree_map(one, value)


class Guard:
    """Refuses passes without the loss scale that bring gradients to the parameters of an engine.

    unscaled: whether such a pass has left gradients since the last clear().
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
    "Loss scaling is required, and this was backward() of a loss without the loss scale: call "
    "engine.backward(loss), or "
    "engine.scale(loss).backward(). Its gradients count for nothing; call engine.zero_grad()"
)
