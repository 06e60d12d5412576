"""Gradients of several micro-batches, added up in fp32 before the one push of a round.

Comes from: ballast.torch.service_optimizer (add), ballast.torch.rounds (lend, clear) and
ballast.deepspeed.gradients (total, forget). Goes to: ballast.torch.buffers. The sum of a round is
((g1 + g2) + g3) + ... in fp32, in the order of the micro-batches, and is rounded once to the
parameter's dtype (to nearest, ties to even). It is not divided. Without micro-batches in it nothing
here copies anything.
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ballast.errors import LossScaleMismatch
from ballast.torch import buffers
from ballast.torch.manifest import Entry


def dropped_text(count: int) -> str:
    """What became of a sum of `count` micro-batches, and what to do."""
    return (
        f"the sum of {count} micro-batches is dropped: begin the round again, each of them with "
        "opt.scale(loss).backward()"
    )


class Accumulation:
    """The micro-batches since the last round. Parameters keep their sum also before they attach.

    steps: micro-batches of a round. count: those in the sum.
    Memory: 4 bytes per element of every added gradient, kept for the next round, and a
    copy in the parameter's dtype for the push.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.count = 0
        self._scale = 0.0  # the factor on the losses of the sum
        self._held = 0  # open no_sync() contexts
        self._sums: dict[torch.Tensor, torch.Tensor] = {}  # by parameter
        self._added: set[torch.Tensor] = set()  # parameters whose sum counts

    def ends_round(self) -> bool:
        """Whether the next micro-batch is the last one of its round."""
        return not self._held and self.count + 1 >= self.steps

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """No micro-batch ends a round inside. May be nested."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def add(self, entries: list[Entry], scale: float) -> None:
        """Adds the gradients of `entries` as one micro-batch; their .grad is None afterwards.

        A parameter without a gradient counts as zeros, and one without a gradient in all
        micro-batches of a round has none in the round. scale: the factor on their loss. Raises as
        expect() and buffers.dense_gradient(), before the gradients have changed.
        """
        self.expect(scale)
        checked = [(e.param, buffers.dense_gradient(e)) for e in entries]
        grads = {p: grad for p, grad in checked if grad is not None}
        for p, grad in grads.items():
            if p not in self._added:
                self._begin(p, grad)
        further = [p for p in grads if p in self._added]
        if further:
            # One call, which no signal handler of Python interrupts.
            torch._foreach_add_([self._sums[p] for p in further], [grads[p] for p in further])
        self._added.update(grads)
        self._scale = scale
        self.count += 1
        for p in grads:
            p.grad = None

    def expect(self, scale: float) -> None:
        """LossScaleMismatch where the sum has another scale than the next micro-batch.

        Nothing can be made of such a sum, so it is empty afterwards.
        """
        if self.count == 0 or scale == self._scale:
            return
        dropped, before = self.count, self._scale
        self.discard()
        raise LossScaleMismatch(
            f"micro-batch {dropped + 1} of the round is multiplied by {scale:g}, and those before "
            f"it by {before:g}; {dropped_text(dropped)}"
        )

    def lend(self, entry: Entry) -> tuple[int, torch.Tensor | None]:
        """As buffers.gradient(): of the micro-batches in the sum plus the present .grad.

        The sum stays unchanged, so that a step() that fails before its round can be repeated.
        """
        if entry.param not in self._added:
            return buffers.gradient(entry)
        total, grad = self._sums[entry.param], buffers.dense_gradient(entry)
        return buffers.copied_gradient(entry, total if grad is None else total + grad)

    def total(self, p: torch.Tensor) -> torch.Tensor | None:
        """The sum of a parameter plus its present .grad, new, in fp32; None without either."""
        grad = None if p.grad is None else p.grad.detach()
        if p not in self._added:
            return None if grad is None else grad.to(torch.float32, copy=True)
        return self._sums[p].clone() if grad is None else self._sums[p] + grad

    def forget(self, p: torch.Tensor) -> None:
        """Takes a parameter out of the sum; its .grad then counts alone."""
        self._added.discard(p)

    def clear(self, entries: list[Entry]) -> None:
        """The round has ended: the sum is empty, and the .grad of `entries` has been taken."""
        if self.count == 0:
            return
        self.discard()
        for entry in entries:
            entry.param.grad = None

    def discard(self) -> None:
        """Empties the sum."""
        self._added.clear()
        self.count = 0

    def _begin(self, p: torch.Tensor, grad: torch.Tensor) -> None:
        total = self._sums.get(p)
        if total is None or total.shape != grad.shape:
            total = torch.empty(grad.shape, dtype=torch.float32, device=grad.device)
            self._sums[p] = total
        total.copy_(grad)
