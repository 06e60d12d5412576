"""Notices `clip_grad_norm_` before step() in a job of several trainers, where it is not the clip of
the mean.

The function leaves no mark, but all gradients that it has clipped have one and the same norm. So:
rounds in a row whose gradients differ and whose norm does not (docs/decisions/009).

Comes from: ballast.torch.rounds, before a round. Goes to: nothing.
Thread safety: used by one thread at a time.
"""

from __future__ import annotations

import torch

# Examined rounds: each costs one pass over the gradients.
ROUNDS = 20
# By dtype: how far the norms of clipped gradients lie apart at most, relatively; how far that of
# some tensor must, so that they are not the same gradients; and how many rounds in a row tell.
# The norm that torch clips 16-bit gradients by has 16 bits itself.
FP32 = (1e-5, 1e-4, 3)
SHORT = (1e-2, 5e-2, 8)


class LocalClipWatch:
    """Looks at the first rounds of one optimizer."""

    def __init__(self) -> None:
        self._left = ROUNDS
        self._last: torch.Tensor | None = None  # norm of each gradient, fp64 on the CPU
        self._alike = 1

    @property
    def over(self) -> bool:
        """Whether saw() will not be True any more, whatever it is given."""
        return self._left == 0

    def saw(self, gradients: list[torch.Tensor]) -> bool:
        """Whether the gradients of this and of earlier rounds look clipped; True once at most.

        gradients: of this trainer, dense, of any dtype and device; read only.
        """
        if self.over or not gradients:
            return False
        self._left -= 1
        short = any(g.dtype != torch.float32 for g in gradients)
        apart, others, in_a_row = SHORT if short else FP32
        norms = _norms(gradients)
        self._alike = self._alike + 1 if self._as_before(norms, apart, others) else 1
        self._last = norms
        if self._alike < in_a_row:
            return False
        self._left = 0
        return True

    def _as_before(self, norms: torch.Tensor, apart: float, others: float) -> bool:
        last = self._last
        if last is None or last.shape != norms.shape:
            return False
        before, now = float(last.norm()), float(norms.norm())
        one_norm = before > 0 and abs(now - before) <= apart * before
        return one_norm and bool(((norms - last).abs() > others * last).any())


def _norms(gradients: list[torch.Tensor]) -> torch.Tensor:
    each = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in gradients]
    here = each[0].device
    return torch.stack([norm.to(here) for norm in each]).to("cpu", torch.float64)
