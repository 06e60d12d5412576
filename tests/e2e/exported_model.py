"""A model with everything that an export has to keep, its job, and readers of the files.

Comes from: tests of exports and imports. Goes to: ballast.torch.
"""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch
import torch

import ballast.torch as bt
from e2e.cluster import Cluster
from e2e.small_run import assert_equal


class Model(torch.nn.Module):
    """Tied and frozen parameters, a scalar, an empty tensor, and two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(50, 33)
        self.head = torch.nn.Linear(33, 50, bias=True)
        self.head.weight = self.embed.weight
        self.frozen = torch.nn.Parameter(torch.randn(7), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.empty = torch.nn.Parameter(torch.empty(0, 4))
        self.low = torch.nn.Parameter(torch.randn(129, 17).bfloat16())
        self.late = torch.nn.Parameter(torch.randn(5, 3))

    def trainable(self, late: bool) -> list[tuple[str, torch.nn.Parameter]]:
        named = [(n, p) for n, p in self.named_parameters() if n != "frozen"]
        return [(n, p) for n, p in named if (n == "late") == late]


def train(model: Model, optimizer: bt.AdamW, rounds: int) -> None:
    for _ in range(rounds):
        generator = torch.Generator().manual_seed(optimizer.round)
        for _, p in model.named_parameters():
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


def open_job(cluster: Cluster, job: str, **options) -> tuple[Model, bt.AdamW]:
    model = Model()
    groups = [{"params": [p for _, p in model.trainable(late=False)], "lr": 0.01}]
    optimizer = bt.AdamW(
        groups, endpoints=cluster.endpoints, job=job, world_size=1, rank=0, model=model,
        durability="process", tile_elements=64, extent_elements=512, **options,
    )  # fmt: skip
    return model, optimizer


def add_late(model: Model, optimizer: bt.AdamW) -> None:
    optimizer.add_param_group({"params": [p for _, p in model.trainable(late=True)], "lr": 0.1})


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= safetensors.torch.load_file(file)
    return found


def states_of(optimizer: bt.AdamW) -> dict[str, list[torch.Tensor]]:
    state = optimizer.export_state()
    return {name: list(state["state"][i].values()) for i, name in state["names"].items()}


def assert_equal_states(ours: bt.AdamW, theirs: bt.AdamW) -> None:
    a, b = states_of(ours), states_of(theirs)
    assert set(a) == set(b)
    for name in a:
        assert_equal(a[name], b[name])
