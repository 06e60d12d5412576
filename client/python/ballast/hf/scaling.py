"""The loss scale of the service under Trainer: any loss is multiplied where backward() begins.

Trainer, and each trainer derived from it, gives its loss to Accelerator.backward(). There it is
multiplied, whatever it was made of; the loss that Trainer logs keeps its value. Accelerate makes no
GradScaler, because its precision is "no". Gradients that came by another way lack the scale, and
are refused before a step sends anything.
Comes from: ballast.hf.callback and ballast.hf.factory. Goes to: the class accelerate.Accelerator
and hooks at the parameters, between on_train_begin and on_train_end; after an exception in train()
until the optimizer is gone. Thread safety: as the model.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ballast.errors import BadArgument
from ballast.hf.replaced import Replaced
from ballast.hf.resuming import ResumingOptimizer
from ballast.torch.scaling import scaled

_guards: weakref.WeakKeyDictionary[ResumingOptimizer, _Guard] = weakref.WeakKeyDictionary()


def begin(optimizer: ResumingOptimizer) -> None:
    """Has Accelerator.backward() multiply by optimizer.loss_scale, which the service moves.

    For accelerators that prepared the optimizer, until end(). Then each step() raises
    BadArgument where a gradient came from another backward(), and so does Accelerator.backward()
    where the accelerator has an optimizer that would not divide by this scale. Nothing without a
    loss scale.
    """
    end(optimizer)
    if optimizer._membership.config.loss_scale != 1.0:
        _guards[optimizer] = _Guard(optimizer)
        optimizer.scaled_at_backward = True
        _backward.begin(optimizer)


def end(optimizer: ResumingOptimizer) -> None:
    """Accelerate treats this optimizer's losses as it does by itself."""
    guard = _guards.pop(optimizer, None)
    if guard is not None:
        guard.remove()
    optimizer.scaled_at_backward = False
    _backward.end(optimizer)


def need_callback(optimizer: ResumingOptimizer) -> None:
    """A step raises BadArgument, before it sends anything, where ballast.hf.Callback() is missing:
    Trainer would not scale the loss, would clip scaled gradients, and would schedule by itself."""
    optimizer.register_step_pre_hook(_refuse_unmanaged)


def _refuse_unmanaged(optimizer: Any, *_: Any) -> None:
    if not optimizer.managed:
        raise BadArgument(
            "fp16 and a scheduler section of the ds_config need "
            "Trainer(..., callbacks=[ballast.hf.Callback()])"
        )


class _Guard:
    """Whether all gradients of an optimizer's next step have the scale.

    It keeps no reference to the optimizer, since the parameters' hooks keep the guard.
    """

    def __init__(self, optimizer: ResumingOptimizer) -> None:
        # Since the last step: whether gradients came from a scaled pass, and from another one.
        self._scaled = self._others = False
        self._in_pass = False
        self._watched: dict[int, Any] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._check),
            optimizer.register_step_post_hook(self._stepped),
        ]
        self._watch(optimizer)
        weakref.finalize(optimizer, self.remove).atexit = False

    def remove(self) -> None:
        """No hook of it is left."""
        for hook in (*self._hooks, *self._watched.values()):
            hook.remove()
        self._hooks, self._watched = [], {}

    @contextlib.contextmanager
    def scaled_pass(self, optimizer: ResumingOptimizer) -> Iterator[None]:
        """Gradients that arrive inside have the scale."""
        self._watch(optimizer)  # again, for added groups
        if self._others and all(p.grad is None for p in _parameters(optimizer)):
            self._others = False  # They were examined, and dropped.
        self._in_pass = True
        try:
            yield
        finally:
            self._in_pass = False

    def _watch(self, optimizer: ResumingOptimizer) -> None:
        for p in _parameters(optimizer):
            if id(p) not in self._watched and p.requires_grad and p.is_leaf:
                self._watched[id(p)] = p.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, parameter: torch.Tensor) -> None:
        if self._in_pass:
            self._scaled = True
        else:
            self._others = True

    def _check(self, optimizer: Any, arguments: Any, named: Any) -> None:
        if any(p.grad is not None for p in _parameters(optimizer)):
            if self._others or not self._scaled:
                raise BadArgument(
                    f"gradients of this step lack the loss scale {optimizer.loss_scale:g}: they "
                    "came from a backward() that is not Accelerator.backward(). In a script's "
                    "training_step() call self.accelerator.backward(loss) for each loss, in place "
                    "of loss.backward(), and torch.autograd.grad() for gradients that are only "
                    "looked at. Or train in bf16, which needs no scale"
                )

    def _stepped(self, *_: Any) -> None:
        self._scaled = self._others = False


def _scaling(real: Callable[..., Any]) -> Callable[..., Any]:
    def backward(self: Any, loss: Any, **named: Any) -> Any:
        prepared = [getattr(each, "optimizer", each) for each in self._optimizers]
        guards = {each: _guards[each] for each in prepared if each in _guards}
        if not guards:
            return real(self, loss, **named)
        factors = {each: each.loss_scale if each in guards else 1.0 for each in prepared}
        if len(set(factors.values())) > 1:
            said = ", ".join(f"{type(o).__name__} by {factor:g}" for o, factor in factors.items())
            raise BadArgument(
                f"the optimizers of one Accelerator divide gradients by different scales ({said}), "
                "and a loss is multiplied by one; prepare the others with an Accelerator of "
                "their own, or train in bf16, which needs no scale"
            )
        with contextlib.ExitStack() as passes:
            for each, guard in guards.items():
                passes.enter_context(guard.scaled_pass(each))
            return real(self, scaled(loss, next(iter(factors.values()))), **named)

    return backward


_backward = Replaced("backward", _scaling)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])
