"""CUDA graphs, and a GPU whose memory is short, with a job that steps in between.

Comes from: order.py. Goes to: jobs on the place alongside a reference on the host (twins.py).
"""

from __future__ import annotations

import copy
import dataclasses

import ballast.torch as bt
import torch
from ballast.errors import Unsupported
from torch import nn
from torch.nn import functional

from gpu_kit.models import differing_bits
from gpu_kit.place import RealGpu, Standin, fresh_job
from gpu_kit.twins import HYPER, Twins

WIDTH = 64
WARM_UPS = 3


def hidden_layers() -> nn.Module:
    torch.manual_seed(7)
    layers = (nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))
    return nn.Sequential(*layers)


def batch(number: int) -> torch.Tensor:
    return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(number))


def backward(model: nn.Module, x: torch.Tensor) -> None:
    model(x).square().mean().backward()


def captured(model: nn.Module, x: torch.Tensor) -> torch.cuda.CUDAGraph:
    """Forward and backward of `x` as a graph; its gradients are where the capture put them."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            model.zero_grad(set_to_none=True)
            backward(model, x)
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backward(model, x)
    return graph


@dataclasses.dataclass
class Replayed:
    """Differing bits of the weights of a job whose gradients a graph forms: from a job on the host
    with the same gradients, and from one that runs without a graph. refused: what step() and
    attach() say in a capture, "" where they are not refused."""

    host: int
    eager: int
    refused: tuple[str, str]


def replay(place: RealGpu, endpoints: list[str], rounds: int) -> Replayed:
    model = hidden_layers()
    twins = Twins(place, endpoints, model)
    eager = copy.deepcopy(model).to(place.device)
    own = bt.AdamW(eager.named_parameters(), job=fresh_job("eager"), endpoints=endpoints, rank=0,
                   world_size=1, durability="none", **HYPER)  # fmt: skip
    x = torch.zeros(16, WIDTH, device=place.device)
    graph = captured(twins.there, x)
    for number in range(rounds):
        x.copy_(batch(number))
        graph.replay()
        twins.step()
        own.zero_grad()
        backward(eager, batch(number).to(place.device))
        own.step()
    refused = refusals(twins, endpoints)
    graph.replay()
    twins.step()
    host = twins.weight_bits()
    own.zero_grad()
    backward(eager, batch(rounds - 1).to(place.device))
    own.step()
    pairs = zip(twins.there.parameters(), eager.parameters(), strict=True)
    bits = sum(differing_bits(p, q) for p, q in pairs)
    twins.close()
    own.close()
    return Replayed(host, bits, refused)


def refusals(twins: Twins, endpoints: list[str]) -> tuple[str, str]:
    """What step() and attach() say while a graph is captured; the weights stay as they are."""
    said = []
    late = bt.AdamW(twins.there.named_parameters(), job=fresh_job("late"), durability="none",
                    endpoints=endpoints, rank=0, world_size=1)  # fmt: skip
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        for call in (twins.ours.step, late.attach):
            try:
                call()
            except Unsupported as error:
                said.append(str(error))
            else:
                said.append("")
    return said[0], said[1]


class Greedy(torch.autograd.Function):
    """The identity; its backward pass asks for more memory than there is, when `bytes` says so."""

    bytes = 0

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        if Greedy.bytes and not gradient.is_cuda:
            raise torch.cuda.OutOfMemoryError("planted, where there is no GPU")
        if Greedy.bytes:
            torch.empty(Greedy.bytes, dtype=torch.uint8, device=gradient.device)
        return gradient.clone()


class Halves(nn.Module):
    """Layers before and after Greedy: when it fails, some have a gradient and some have none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.first, self.second = nn.Linear(WIDTH, 256), nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.gelu(Greedy.apply(self.first(x))))


def short_of_memory(place: RealGpu | Standin, endpoints: list[str], rounds: int) -> tuple[int, int]:
    """(differing bits, backward passes that ran out of memory) of a job under memory pressure.

    Between rounds blocks of many lengths are taken and given back, gradients are freed, and the
    allocator gives its memory back to CUDA. In every third round backward runs out of memory, and
    the script begins the round again.
    """
    twins = Twins(place, endpoints, Halves(), extent_elements=4096, tile_elements=64)
    failed = 0
    for number in range(rounds):
        x = batch(number).to(place.device)
        if number % 3 == 1:
            Greedy.bytes = 1 << 45
            try:
                backward(twins.there, x)
            except torch.cuda.OutOfMemoryError:
                failed += 1
            Greedy.bytes = 0
            twins.ours.zero_grad(set_to_none=True)
        backward(twins.there, x)
        twins.step()
        twins.ours.zero_grad(set_to_none=True)
        press(place, number)
    bits = twins.weight_bits() + twins.state_bits()
    twins.close()
    return bits, failed


def press(place: RealGpu | Standin, number: int) -> None:
    """Takes and frees memory as another part of a script may, and fills it with other bits."""
    blocks = [
        torch.full(((number + 3) * 1000 * i + 7,), float(i), device=place.device)
        for i in range(1, 20)
    ]
    del blocks[::2]
    if place.real:
        torch.cuda.empty_cache()
    del blocks
    if place.real and number % 2:
        torch.cuda.empty_cache()
