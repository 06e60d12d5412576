"""The referee: torch.optim.AdamW(fused=True) on fp32 masters, fed the same gradients.

Comes from: train.py on rank 0. The trainers' gradients travel to rank 0 by gloo, beside Ballast,
and are summed in slot order; their mean (and the unscaling) is one multiplication, as in the
service (docs/numerics.md).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist


class Shadow:
    """Lives on every rank, because gathering needs all of them; only rank 0 holds an optimizer."""

    def __init__(self, params: list[torch.nn.Parameter], rank: int, world: int, scale: float):
        """`scale`: 1 / (world * loss_scale), formed in double, used as fp32."""
        self._params = params
        self._rank = rank
        self._world = world
        self._scale = torch.tensor(np.float32(scale))
        self.masters = [torch.nn.Parameter(p.detach().float().clone()) for p in params]
        self._opt = None
        if rank == 0:
            self._opt = torch.optim.AdamW(self.masters, lr=1e-3, fused=True)

    def step(self, lr: float) -> None:
        """Takes the present .grad of every rank; to be called before the gradients change."""
        flat = torch.cat([p.grad.float().reshape(-1) for p in self._params])
        gathered = None
        if self._rank == 0:
            gathered = [torch.empty_like(flat) for _ in range(self._world)]
        if self._world > 1:
            dist.gather(flat, gathered, dst=0)
        else:
            gathered = [flat]
        if self._opt is None:
            return
        total = gathered[0].clone()
        for other in gathered[1:]:
            total += other
        total *= self._scale
        at = 0
        for master in self.masters:
            master.grad = total[at : at + master.numel()].view_as(master)
            at += master.numel()
        for group in self._opt.param_groups:
            group["lr"] = lr
        self._opt.step()

    def differing_bits(self, exported: dict) -> dict[str, int]:
        """Bits that differ between the service's state (opt.export_state()) and the shadow's."""
        counts = {"master": 0, "exp_avg": 0, "exp_avg_sq": 0}
        for i, master in enumerate(self.masters):
            mine = self._opt.state[master]
            theirs = exported["state"][i]
            pairs = {
                "master": master.detach(),
                "exp_avg": mine["exp_avg"],
                "exp_avg_sq": mine["exp_avg_sq"],
            }
            for name, tensor in pairs.items():
                counts[name] += _differing_bits(tensor, theirs[name])
        return counts


def _differing_bits(a: torch.Tensor, b: torch.Tensor) -> int:
    left = a.detach().contiguous().numpy().view(np.uint32)
    right = b.detach().contiguous().numpy().view(np.uint32)
    return int(np.unpackbits((left ^ right).reshape(-1).view(np.uint8)).sum())
