"""The torch oracles of docs/numerics.md, and the service's expected treatment of gradients.

Comes from: test_matrix.py, test_optimizers.py. Goes to: torch.optim.
(a) stock torch.optim.AdamW(fused=True): exact for tensors whose element count is a multiple of 8.
(b) AdamW and the other optimizers with foreach=False and a correctly rounded sqrt: exact for every
size.
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
    """Both oracles, or (b) alone, side by side, on fp32 masters of the same initial weights."""

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
        **fixed: Any,
    ) -> None:
        """groups: torch parameter groups whose "params" are (name, initial weight) pairs."""
        self._kind, self._fixed = kind, fixed
        self._loop: torch.optim.Optimizer | None = None
        self._fused: torch.optim.Optimizer | None = None
        self._steps: list[int] = []
        self._loop_masters: list[torch.nn.Parameter] = []
        self._fused_masters: list[torch.nn.Parameter | None] = []
        self.names: list[str] = []
        for group in groups:
            self.add_group(group)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """For learning rate schedules."""
        return [o for o in (self._loop, self._fused) if o is not None]

    def add_group(self, group: dict[str, Any]) -> None:
        hyper = {key: value for key, value in group.items() if key != "params"}
        loop, fused = [], []
        for name, weight in group["params"]:
            self.names.append(name)
            loop.append(torch.nn.Parameter(weight.detach().float().clone()))
            self._steps.append(0)
            plain = self._kind is torch.optim.AdamW and not self._fixed
            exact = plain and weight.numel() % 8 == 0
            fused.append(torch.nn.Parameter(loop[-1].detach().clone()) if exact else None)
        self._loop_masters += loop
        self._fused_masters += fused
        self._loop = self._grown(self._loop, loop, hyper, foreach=False)
        exact_ones = [p for p in fused if p is not None]
        if exact_ones:
            self._fused = self._grown(self._fused, exact_ones, hyper, fused=True)

    def step(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """One step. gradients: scaled mean per tensor, fp32; None where no trainer had one."""
        for masters in (self._loop_masters, self._fused_masters):
            for p, gradient in zip(masters, gradients, strict=True):
                if p is not None:
                    p.grad = gradient
        for i, gradient in enumerate(gradients):
            self._steps[i] += gradient is not None
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
            for key in exported["state"][0]:
                counts[f"{title} {key}"] = sum(
                    differing_bits(self._state(optimizer, i, p, key), exported["state"][i][key])
                    for i, p in enumerate(masters)
                    if p is not None and exported["state"][i][key] is not None
                )
        return counts

    def _grown(self, optimizer, params, hyper, **way) -> torch.optim.Optimizer:
        if optimizer is None:
            return self._kind([{"params": params, **hyper}], **way, **self._fixed)
        optimizer.add_param_group({"params": params, **hyper})
        return optimizer

    def _state(self, optimizer, i, p, key) -> torch.Tensor:
        if key == "master":
            return p.detach()
        if key == "step":  # SGD counts none.
            return torch.tensor(float(self._steps[i]))
        value = optimizer.state.get(p, {}).get(key)
        return torch.zeros_like(p) if value is None else value  # Never stepped.


class FusedAdamW:
    """Oracle (a) for one tensor of any size: zeros make its element count a multiple of 8. Patches
    nothing, so it may run concurrently with other threads."""

    def __init__(self, weight: torch.Tensor, **hyper: Any) -> None:
        self._count = weight.numel()
        self._p = torch.nn.Parameter(self._padded(weight))
        self._optimizer = torch.optim.AdamW([self._p], fused=True, **hyper)

    def step(self, gradient: torch.Tensor) -> None:
        """gradient: scaled mean, fp32, with as many elements as the weight."""
        self._p.grad = self._padded(gradient)
        self._optimizer.step()

    @property
    def weight(self) -> torch.Tensor:
        """The master now, flat."""
        return self._p.detach()[: self._count]

    def _padded(self, values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(values.detach().flatten(), (0, -values.numel() % 8))


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


class ReferenceLion(torch.optim.Optimizer):
    """Lion in fp32, written from docs/numerics.md: operations of numpy, which round once."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0, foreach=False):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            decay, neg_lr = np.float32(1 - lr * group["weight_decay"]), np.float32(-lr)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                average = state.setdefault("exp_avg", torch.zeros_like(parameter)).numpy()
                p, g = parameter.numpy(), parameter.grad.numpy()
                c = _fma(np.float32(1 - beta1), g, average * np.float32(beta1))
                p[...] = p * decay + neg_lr * np.sign(c)
                average[...] = _fma(np.float32(1 - beta2), g, average * np.float32(beta2))


class ReferenceLamb(torch.optim.Optimizer):
    """LAMB in fp32, written from docs/numerics.md, for jobs with the tiles and extents of SMALL.

    All parameters of a group have one dtype, so that they form one flat space, in their order.
    """

    TILE, EXTENT = 64, 128

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, max_coeff=10.0,
        min_coeff=0.01, bias_correction=True, foreach=False,
    ):  # fmt: skip
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**hyper, "max_coeff": max_coeff, "min_coeff": min_coeff})
        self._corrects = bias_correction

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            offset = 0
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(group, parameter, offset)
                offset += parameter.numel()

    def _step_one(self, group, parameter, offset):
        p = parameter.numpy()
        u = self._update(group, p, parameter.grad.numpy(), self.state[parameter])
        squares = [self._squares(values.reshape(-1), offset) for values in (p, u)]
        ratio = np.float32(1)
        if all(0 < s < np.inf for s in squares):
            low, high = float(np.float32(group["min_coeff"])), float(np.float32(group["max_coeff"]))
            ratio = np.float32(max(low, min(high, np.sqrt(squares[0]) / np.sqrt(squares[1]))))
        p[...] = _fma(np.float32(-group["lr"]) * ratio, u, p)

    def _update(self, group, p, g, state):
        beta1, beta2 = group["betas"]
        m = state.setdefault("exp_avg", torch.zeros(p.shape)).numpy()
        v = state.setdefault("exp_avg_sq", torch.zeros(p.shape)).numpy()
        t = float(state.setdefault("t", 0) + 1)
        state["t"] = int(t)
        assert beta1 > 0.5
        m[...] = _fma(np.float32(1 - beta1), g - m, m)
        v[...] = _fma(np.float32(1 - beta2) * g, g, v * np.float32(beta2))
        grow_m = np.float32(1 / (1 - beta1**t)) if self._corrects else np.float32(1)
        grow_root = np.float32(1 / (1 - beta2**t) ** 0.5) if self._corrects else np.float32(1)
        under = _fma(grow_root, np.sqrt(v), np.float32(group["eps"]))
        return _fma(np.float32(group["weight_decay"]), p, m * grow_m / under)

    def _squares(self, values, offset):
        """fp64 sum over extents of fp64 sums of the fp32 sums of their tiles."""
        total, end = np.float64(0), offset + values.size
        for extent in range(offset // self.EXTENT * self.EXTENT, end, self.EXTENT):
            of_extent = np.float64(0)
            for tile in range(extent, extent + self.EXTENT, self.TILE):
                lanes = np.zeros(self.TILE, np.float32)
                first, last = max(tile, offset), min(tile + self.TILE, end)
                if first < last:
                    lanes[first - tile : last - tile] = values[first - offset : last - offset]
                lanes = lanes * lanes
                while lanes.size > 1:
                    lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
                of_extent += np.float64(lanes[0])
            total += of_extent
        return float(total)


class ReferenceDelta(torch.optim.Optimizer):
    """p = fma(-lr, u, p * decay) in fp32, written from docs/numerics.md."""

    def __init__(self, params, lr=1.0, weight_decay=0.0, foreach=False):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            decay = np.float32(1 - group["lr"] * group["weight_decay"])
            for parameter in group["params"]:
                if parameter.grad is not None:
                    p = parameter.numpy()
                    p[...] = _fma(np.float32(-group["lr"]), parameter.grad.numpy(), p * decay)


def _fma(a: np.float32, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of fp32 values, rounded once.

    The product is exact in fp64. The sum is rounded to fp64 first, to odd, so that the rounding to
    fp32 is that of the exact sum.
    """
    product = np.float64(a) * b.astype(np.float64)
    wide = c.astype(np.float64)
    total = product + wide
    virtual = total - product
    error = (product - (total - virtual)) + (wide - virtual)  # exact: Knuth's two-sum
    bits = total.view(np.int64)
    towards = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits & 1 == 0), bits + towards, bits)
    return odd.view(np.float64).astype(np.float32)


_OWN = {"Lion": ReferenceLion, "LAMB": ReferenceLamb, "ApplyDelta": ReferenceDelta}


def kind_of_oracle(name: str) -> type[torch.optim.Optimizer]:
    """The reference class of ballast.torch's class `name`."""
    return _OWN[name] if name in _OWN else getattr(torch.optim, name)
