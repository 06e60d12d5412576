"""A model with parameters of all kinds, and torch and Ballast trainers that step it.

Comes from: test_load_export.py and test_load_export_kills.py. Goes to: cluster.Trainers.
"""

from __future__ import annotations

import torch
from torch import nn

from e2e.lockstep import Noise
from e2e.oracle import ARRAYS, differing_bits, rounded_sqrt, scale, slot_order_sum

SHAPES = {"weight": (64, 40), "odd": (77, 3), "bias": (40,), "scalar": (), "silent": (9,)}


class Net(nn.Module):
    """All kinds of parameters: tied, frozen, one without a gradient for a while, 16-bit ones."""

    def __init__(self, dtypes: dict[str, torch.dtype] | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name, shape in SHAPES.items():
            value = torch.randn(shape, generator=generator) / 8
            dtype = (dtypes or {}).get(name, torch.float32)
            self.register_parameter(name, nn.Parameter(value.to(dtype)))
        self.tied = self.weight
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)

    def groups(self) -> list[dict]:
        return [
            {"params": [self.weight, self.bias], "lr": 1e-2, "weight_decay": 0.1},
            {
                "params": [self.odd, self.frozen, self.silent, self.scalar],
                "lr": 3e-3,
                "betas": (0.8, 0.95),
                "eps": 1e-6,
                "weight_decay": 0.0,
            },
        ]

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: getattr(self, name) for name in SHAPES}


class Gradients:
    """The same for everybody; "silent" has none before round 7."""

    def __init__(self, world: int, dtypes: dict[str, torch.dtype] | None = None) -> None:
        every = {name: (dtypes or {}).get(name, torch.float32) for name in SHAPES}
        self._noise, self._world = Noise(SHAPES, every), world

    def of(self, step: int, slot: int, name: str) -> torch.Tensor | None:
        return None if name == "silent" and step < 7 else self._noise.of(step, slot, name)

    def give(self, net: Net, step: int, slot: int) -> None:
        for name, parameter in net.trained().items():
            parameter.grad = self.of(step, slot, name)

    def give_mean(self, net: Net, step: int) -> None:
        for name, parameter in net.trained().items():
            total = slot_order_sum([self.of(step, s, name) for s in range(self._world)])
            parameter.grad = None if total is None else total * scale(self._world)


def torch_steps(net, optimizer, gradients, steps) -> None:
    for step in steps:
        gradients.give_mean(net, step)
        with rounded_sqrt():
            optimizer.step()


def ballast_steps(nets, trainers, gradients, steps) -> None:
    for step in steps:
        for slot, net in enumerate(nets):
            gradients.give(net, step, slot)
        trainers.step()


def torch_adamw(net: Net) -> torch.optim.AdamW:
    return torch.optim.AdamW(net.groups(), foreach=False)


def expect_same_nets(a: Net, b: Net) -> None:
    for name, parameter in a.named_parameters():
        assert differing_bits(parameter, dict(b.named_parameters())[name]) == 0, name


def expect_same_state(a: dict, b: dict, keys=(*ARRAYS, "step")) -> None:
    assert set(a["state"]) == set(b["state"])
    for i, state in a["state"].items():
        for key in keys:
            assert differing_bits(state[key], b["state"][i][key]) == 0, (i, key)


MIXED = {"weight": torch.bfloat16, "bias": torch.float16, "odd": torch.bfloat16}
