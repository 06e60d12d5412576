"""Bits of Ballast's weights that differ from those of torch's AdamW, given the same gradients.

Comes from: peer_step.py, on the CPU. The reference is oracle (a) of docs/numerics.md: it wants
ATEN_CPU_CAPABILITY=avx2 and contiguous tensors whose element count is a multiple of 8. The
coefficient of the clip is the service's own: torch adds the squares in another order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpu_kit import models

if TYPE_CHECKING:
    from gpu_kit.peer_contestants import Ballast


def differing_bits(contestant: Ballast, steps: int) -> dict[str, Any]:
    """Of the weights after each of `steps` steps, all together; clipped: the number of clipped
    steps."""
    named = list(contestant.module.named_parameters())
    odd = [name for name, p in named if p.numel() % 8 or not p.is_contiguous()]
    if odd:
        raise ValueError(f"the reference is not exact for {odd[0]}; give sizes that 8 divides")
    parameters = [p for _, p in named]
    masters = [p.detach().float() for p in parameters]
    reference = torch.optim.AdamW(masters, fused=True, **contestant._adamw())
    differing = clipped = compared = 0
    for _ in range(steps):
        contestant.forward_backward()
        grads = [p.grad.float() for p in parameters]
        contestant.step()
        coefficient = contestant.optimizer.last_report["clip_coef"]
        factor = torch.tensor(coefficient, dtype=torch.float64).float()
        for master, grad in zip(masters, grads):
            master.grad = grad * factor
        reference.step()
        clipped += coefficient < 1
        for p, master in zip(parameters, masters):
            compared += 16 * p.numel()
            differing += models.differing_bits(p, master.bfloat16())
    return {"differing_bits": differing, "compared_bits": compared, "clipped": clipped}
