"""A job whose tensors are on the GPU, and references on the host that get the same gradients.

Comes from: bits.py and order.py. Goes to: servers, and torch's own AdamW. The GPU forms each
gradient once; the references step with a copy of its bits, so any later difference is ours.
"""

from __future__ import annotations

import copy
from typing import Any

import ballast.torch as bt
import torch
from ballast.loss_scale import DynamicLossScale
from ballast.torch import gpu
from torch import nn

from gpu_kit.models import differing_bits
from gpu_kit.place import RealGpu, Standin, fresh_job

HYPER = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.01}
ARRAYS = ("master", "exp_avg", "exp_avg_sq")


class FusedAdamW:
    """torch.optim.AdamW(fused=True) on fp32 masters of the host.

    docs/numerics.md: its bits are the service's for tensors of a multiple of 8 elements, given the
    gradient times the factor of clip and loss scale.
    """

    def __init__(self, model: nn.Module) -> None:
        self._masters = [nn.Parameter(p.detach().float().clone()) for p in model.parameters()]
        self._torch = torch.optim.AdamW(self._masters, fused=True, **HYPER)
        self._sums: list[torch.Tensor | None] = [None] * len(self._masters)

    def add(self, gradients: list[torch.Tensor | None]) -> None:
        """One micro-batch: sums are fp32."""
        for i, gradient in enumerate(gradients):
            before = self._sums[i]
            if gradient is not None:
                self._sums[i] = gradient.float() if before is None else before + gradient.float()

    def step(self, dtypes: list[torch.dtype], factor: float, applied: bool) -> None:
        """The end of a round: each sum is rounded to its dtype, and multiplied by fp32(factor)."""
        rounded = float(torch.tensor(factor, dtype=torch.float64).float())
        for master, total, dtype in zip(self._masters, self._sums, dtypes, strict=True):
            master.grad = None if total is None else total.to(dtype).float() * rounded
        self._sums = [None] * len(self._masters)
        if applied:
            self._torch.step()

    def differing_bits(self, exported: dict[str, Any]) -> int:
        """In masters and moments, of the tensors for which equality is promised."""
        bits = 0
        for i, master in enumerate(self._masters):
            if master.numel() % 8 != 0 or i not in exported["state"]:
                continue
            own = {"master": master, **self._torch.state.get(master, {})}
            for key in ARRAYS:
                theirs = exported["state"][i][key]
                mine = own.get(key)
                bits += differing_bits(torch.zeros_like(theirs) if mine is None else mine, theirs)
        return bits


class Twins:
    """there: a model on the place, but for its child `apart` where that stays on the host.
    here: the same weights on the host. ours, reference: their jobs, of one trainer each."""

    def __init__(
        self, place: RealGpu | Standin, endpoints: list[str], model: nn.Module,
        apart: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        place.forget()
        self.place = place
        self.here, self.there = copy.deepcopy(model), copy.deepcopy(model)
        parts = dict(self.there.named_children()) if apart else {"": self.there}
        for name, part in parts.items():
            if name != "apart":
                place.put(part)
        stay = sum(not gpu.on_gpu(p) for p in self.there.parameters())
        if (stay > 0) != apart or stay == len(list(self.there.parameters())):
            raise ValueError(f"{stay} parameters stayed on the host")
        self.fused = FusedAdamW(model)
        given = {"endpoints": endpoints, "rank": 0, "world_size": 1, "durability": "none",
                 **HYPER, **options}  # fmt: skip
        self.ours = bt.AdamW(self.there.named_parameters(), job=fresh_job("kit"), **given)
        host = {key: value for key, value in given.items() if key != "pinned_bytes"}
        self.reference = bt.AdamW(self.here.named_parameters(), job=fresh_job("host"), **host)
        self._dynamic = isinstance(given.get("loss_scale"), DynamicLossScale)

    def backward(self, loss: torch.Tensor) -> None:
        """Multiplies by the job's loss scale, which the reference has to have as well."""
        if self._dynamic and self.ours.loss_scale != self.reference.loss_scale:
            raise ValueError("the reference has another loss scale")
        self.ours.scale(loss).backward()

    def step(self) -> None:
        """One step() of each; the GPU's goes first, while its gradients may still be formed."""
        scale = self.ours.loss_scale if self._dynamic else 1.0
        gradients = [p.grad for p in self.there.parameters()]
        rounds = self.ours.round
        self.ours.step()
        copies = [None if g is None else g.detach().to("cpu") for g in gradients]
        for p, gradient in zip(self.here.parameters(), copies, strict=True):
            p.grad = gradient
        self.reference.step()
        for p in self.here.parameters():
            p.grad = None
        self.fused.add(copies)
        if self.ours.round > rounds:
            dtypes = [p.dtype for p in self.there.parameters()]
            factor = (self.ours.clip_coef or 1.0) / scale
            self.fused.step(dtypes, factor, not self.ours.step_was_skipped)

    def no_sync(self) -> None:
        """One step() of each that ends no round."""
        with self.ours.no_sync(), self.reference.no_sync():
            self.step()

    def weight_bits(self) -> int:
        """Bits of parameters that differ."""
        pairs = zip(self.there.parameters(), self.here.parameters(), strict=True)
        return sum(differing_bits(p, q) for p, q in pairs)

    def state_bits(self) -> int:
        """Bits of masters and moments that differ from the reference's."""
        ours, theirs = self.ours.export_state(), self.reference.export_state()
        if ours["state"].keys() != theirs["state"].keys():
            raise ValueError("the reference's state has other tensors")
        return sum(
            differing_bits(ours["state"][i][key], theirs["state"][i][key])
            for i in ours["state"]
            for key in (*ARRAYS, "step")
        )

    def fused_bits(self) -> int:
        """Bits of masters and moments that differ from torch's, after rounds of step() alone."""
        return self.fused.differing_bits(self.ours.export_state())

    def close(self) -> None:
        self.ours.close()
        self.reference.close()
