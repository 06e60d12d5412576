"""The two torch oracles of docs/numerics.md, and what the service should make of gradients.

Comes from: test_matrix.py. Goes to: torch.optim.AdamW.
(a) stock torch.optim.AdamW(fused=True): exact for tensors whose element count is a multiple of 8.
(b) torch.optim.AdamW(foreach=False) with a correctly rounded sqrt: exact for every size.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

ARRAYS = ("master", "exp_avg", "exp_avg_sq")


@contextmanager
def rounded_sqrt():
    """torch's own sqrt on x86 is MKL's, which is not correctly rounded on every CPU."""

    def sqrt(tensor: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.asarray(np.sqrt(tensor.numpy())))

    with mock.patch.object(torch.Tensor, "sqrt", sqrt):
        yield


class Oracle:
    """Both oracles, side by side, on fp32 masters of the same initial weights."""

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        """groups: torch parameter groups whose "params" are (name, initial weight) pairs."""
        self._loop: torch.optim.AdamW | None = None
        self._fused: torch.optim.AdamW | None = None
        self._loop_masters: list[torch.nn.Parameter] = []
        self._fused_masters: list[torch.nn.Parameter | None] = []
        self.names: list[str] = []
        for group in groups:
            self.add_group(group)

    @property
    def optimizers(self) -> list[torch.optim.AdamW]:
        """For learning rate schedules."""
        return [o for o in (self._loop, self._fused) if o is not None]

    def add_group(self, group: dict[str, Any]) -> None:
        hyper = {key: value for key, value in group.items() if key != "params"}
        loop, fused = [], []
        for name, weight in group["params"]:
            self.names.append(name)
            loop.append(torch.nn.Parameter(weight.detach().float().clone()))
            exact = weight.numel() % 8 == 0
            fused.append(torch.nn.Parameter(loop[-1].detach().clone()) if exact else None)
        self._loop_masters += loop
        self._fused_masters += fused
        self._loop = _grown(self._loop, loop, hyper, foreach=False)
        exact_ones = [p for p in fused if p is not None]
        if exact_ones:
            self._fused = _grown(self._fused, exact_ones, hyper, fused=True)

    def step(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """One step. gradients: scaled mean per tensor, fp32; None where no trainer had one."""
        for masters in (self._loop_masters, self._fused_masters):
            for p, gradient in zip(masters, gradients, strict=True):
                if p is not None:
                    p.grad = gradient
        with rounded_sqrt():
            self._loop.step()
        if self._fused is not None:
            self._fused.step()

    def copy_(self, weights: dict[str, torch.Tensor]) -> None:
        """Gives masters other values; moments stay, as they do in torch."""
        for masters in (self._loop_masters, self._fused_masters):
            for name, p in zip(self.names, masters, strict=True):
                if p is not None and name in weights:
                    p.detach().copy_(weights[name])

    def masters(self) -> list[torch.Tensor]:
        return [p.detach() for p in self._loop_masters]

    def differing_bits(self, exported: dict[str, Any]) -> dict[str, int]:
        """Bits in which opt.export_state() differs, per oracle and array, and the step counts."""
        assert list(exported["names"].values()) == self.names
        counts = {}
        for title, optimizer, masters in (
            ("loop", self._loop, self._loop_masters),
            ("fused", self._fused, self._fused_masters),
        ):
            for key in (*ARRAYS, "step"):
                counts[f"{title} {key}"] = sum(
                    differing_bits(_state(optimizer, p, key), exported["state"][i][key])
                    for i, p in enumerate(masters)
                    if p is not None
                )
        return counts


def _grown(optimizer, params, hyper, **kind) -> torch.optim.AdamW:
    if optimizer is None:
        return torch.optim.AdamW([{"params": params, **hyper}], **kind)
    optimizer.add_param_group({"params": params, **hyper})
    return optimizer


def _state(optimizer, p, key) -> torch.Tensor:
    if key == "master":
        return p.detach()
    state = optimizer.state.get(p)
    if not state:  # never stepped
        return torch.tensor(0.0) if key == "step" else torch.zeros_like(p)
    return state[key]


def differing_bits(a: torch.Tensor, b: torch.Tensor) -> int:
    """Number of bits in which two tensors of one dtype and shape differ."""
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    left, right = (t.detach().contiguous().flatten().view(torch.uint8).numpy() for t in (a, b))
    if np.array_equal(left, right):  # as a rule, and quickly
        return 0
    return int(np.unpackbits(left ^ right).sum())


def slot_order_sum(contributions: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """fp32 sum in the order of the slots; None counts as zeros, and only Nones give None."""
    present = [c for c in contributions if c is not None]
    if not present:
        return None
    total = None
    for c in contributions:
        widened = torch.zeros(present[0].shape) if c is None else c.float()
        total = widened if total is None else total + widened
    return total


def scale(world: int, clip_coef: float = 1.0, loss_scale: float = 1.0) -> float:
    """The one factor of a round: formed in double, rounded to fp32 once."""
    return float(np.float32(clip_coef / (world * loss_scale)))
