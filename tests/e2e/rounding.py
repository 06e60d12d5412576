"""How far two runs may drift apart in which only the order of float32 additions differs.

Comes from: test_collective_four.py. It replays the trainers of collective_trainer.py in one process
and carries, for each weight, the most by which two such runs differ, to the first order in the unit
of rounding u = 2^-24 (docs/collectives.md#four-and-more-ranks has the formulas). Left out is the
effect of a difference of weights on later gradients.
"""

from __future__ import annotations

import copy
import dataclasses

import torch

from e2e.collective_trainer import HYPER, backward, loss_of, new_model

U = 2.0**-24
BETAS, EPS = (0.9, 0.999), 1e-8  # bt.AdamW's defaults


def flat(values: list[torch.Tensor | None], like: torch.nn.Module) -> torch.Tensor:
    """All values in float64, zeros where there is none."""
    parameters = list(like.parameters())
    each = [torch.zeros_like(p) if v is None else v for p, v in zip(parameters, values)]
    return torch.cat([v.detach().double().flatten() for v in each])


def put(model: torch.nn.Module, values: torch.Tensor) -> None:
    """`values`, flat and in the order of the parameters, become the model's weights."""
    sizes = [p.numel() for p in model.parameters()]
    with torch.no_grad():
        for p, part in zip(model.parameters(), values.split(sizes)):
            p.copy_(part.view_as(p))


def exact_loss(weights: torch.Tensor, round: int, world: int) -> torch.Tensor:
    """Mean loss of all ranks' texts of a round, in float64, with its graph in `weights`."""
    model = new_model(torch.float64)
    put(model, weights)
    return sum(loss_of(model, round, rank) for rank in range(world)) / world, model


@dataclasses.dataclass
class Drift:
    """m, v: of AdamW. weight, first, second: the most by which weight, m and v differ."""

    m: torch.Tensor
    v: torch.Tensor
    weight: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor


def gradients(model: torch.nn.Module, round: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean gradient, and by how much that of two runs differs: four ranks' additions in another
    order, and the rounding inside of each backward pass, which is other where weights are."""
    exact = copy.deepcopy(model).double()
    total = magnitude = error = 0.0
    for rank in range(world):
        backward(model, round, rank), backward(exact, round, rank)
        mine = flat([p.grad for p in model.parameters()], model)
        total, magnitude = total + mine, magnitude + mine.abs()
        error = error + (mine - flat([p.grad for p in exact.parameters()], model)).abs()
    return total / world, (2 * (world - 1) * U * magnitude + 2 * error) / world


def clip(mean: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    norm = mean.norm()
    if norm <= HYPER["max_grad_norm"]:
        return mean, delta
    factor = HYPER["max_grad_norm"] / norm
    return factor * mean, factor * (delta + mean.abs() * (mean.abs() @ delta) / norm**2)


def step(weights: torch.Tensor, drift: Drift, given: tuple, at: int) -> torch.Tensor:
    """AdamW, and its effect on the differences. The weights after step number `at`."""
    (mean, delta), (b1, b2), lr = given, BETAS, HYPER["lr"]
    drift.m, drift.first = b1 * drift.m + (1 - b1) * mean, b1 * drift.first + (1 - b1) * delta
    drift.v = b2 * drift.v + (1 - b2) * mean**2
    drift.second = b2 * drift.second + (1 - b2) * 2 * mean.abs() * delta
    m, first = (x / (1 - b1**at) for x in (drift.m, drift.first))
    root = (drift.v / (1 - b2**at)).sqrt()
    of_root = drift.second / (1 - b2**at) / (2 * root).clamp(min=1e-300)
    below = root + EPS
    moved = lr * m / below
    # Each run rounds decay, step and sum once, and the step's own operations.
    drift.weight += lr * (first + m.abs() * of_root / below) / below
    drift.weight += 2 * U * (3 * weights.abs() + 8 * moved.abs())
    return weights * (1 - lr * HYPER["weight_decay"]) - moved


def loss_bound(rounds: int, world: int) -> tuple[float, float]:
    """(the most by which the losses of two runs differ after `rounds`, the loss), in float64."""
    model = new_model(torch.float32)
    weights = flat(list(model.parameters()), model)
    drift = Drift(*(torch.zeros_like(weights) for _ in range(5)))
    for round in range(rounds):
        given = clip(*gradients(model, round, world))
        weights = step(weights, drift, given, round + 1)
        put(model, weights)
    loss, exact = exact_loss(weights, rounds, world)
    loss.backward()
    slope = flat([p.grad for p in exact.parameters()], exact)
    return float(slope.abs() @ drift.weight), loss.item()
