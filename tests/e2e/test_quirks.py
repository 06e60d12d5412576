"""profile="deepspeed" takes the quirks of each optimizer along; docs/schedules.md lists them.

The reference is the formula in double. The exact profile gives other weights from the same step.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import ballast.torch as bt
from e2e.cluster import HANG_S, SMALL, fresh_job

LR, DECAY = 1e-2, 0.1


def step(cluster, kind: type, profile: str, grad: torch.Tensor, **hyper: Any) -> torch.Tensor:
    """The weight, all ones before, after the first step of a job of its own."""
    p = torch.nn.Parameter(torch.ones(len(grad)))
    opt = kind(
        [p], lr=LR, endpoints=cluster.endpoints, job=fresh_job(), attach_timeout=HANG_S,
        profile=profile, **SMALL, **hyper,
    )  # fmt: skip
    p.grad = grad.clone()
    opt.step()
    opt.close()
    return p.detach().double()


def both(cluster, kind: type, grad: torch.Tensor, **hyper: Any) -> list[torch.Tensor]:
    return [step(cluster, kind, profile, grad, **hyper) for profile in ("exact", "deepspeed")]


GRAD = torch.tensor([0.5, -0.25, 2.0])


def test_adagrad_divides_the_gradient_without_its_decay(clusters):
    exact, quirk = both(clusters(1), bt.Adagrad, GRAD, weight_decay=DECAY)
    decayed = GRAD.double() + DECAY
    root = decayed.abs() + 1e-10
    torch.testing.assert_close(exact, 1 - LR * decayed / root, rtol=0, atol=1e-7)
    torch.testing.assert_close(quirk, 1 - LR * GRAD.double() / root, rtol=0, atol=1e-7)


def test_lion_moves_weights_where_its_average_is_zero(clusters):
    grad = torch.tensor([0.0, -0.0, 1.0])
    exact, quirk = both(clusters(1), bt.Lion, grad)
    assert exact.tolist() == pytest.approx([1, 1, 1 - LR], abs=1e-7)
    # A zero average is +0 here, whatever the sign of the zero that came.
    assert quirk.tolist() == pytest.approx([1 - LR, 1 - LR, 1 - LR], abs=1e-7)


def test_lamb_takes_its_ratio_of_the_uncorrected_update(clusters):
    betas = (0.9, 0.999)
    exact, quirk = both(clusters(2), bt.LAMB, GRAD, betas=betas)
    g = GRAD.double()
    m, v = (1 - betas[0]) * g, (1 - betas[1]) * g * g
    grow_m, grow_root = 1 / (1 - betas[0]), 1 / math.sqrt(1 - betas[1])

    def moved(u: torch.Tensor, lr: float) -> torch.Tensor:
        ratio = min(max(math.sqrt(len(g)) / float(u.norm()), 0.01), 10.0)
        return 1 - lr * ratio * u

    corrected = m * grow_m / (v.sqrt() * grow_root + 1e-8)
    torch.testing.assert_close(exact, moved(corrected, LR), rtol=0, atol=1e-6)
    plain = m / (v.sqrt() + 1e-8)
    torch.testing.assert_close(quirk, moved(plain, LR * grow_m / grow_root), rtol=0, atol=1e-6)
