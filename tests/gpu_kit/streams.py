"""Rounds in which the GPU is late: gradients come late, and old weights are read late.

Comes from: order.py, in this process and in children with a planted fault. Goes to: a job on the
place alongside a reference on the host (twins.py). On the stand-in nothing is ever late.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
from torch import nn

from gpu_kit.models import differing_bits
from gpu_kit.place import RealGpu, Standin
from gpu_kit.twins import Twins

LATE_CYCLES = 20_000_000  # about 10 ms: longer than a round of these jobs takes
WAYS = ("the default stream", "a side stream", "two side streams in turn")


@dataclasses.dataclass
class Seen:
    """Differing bits. old: of weights that a slow kernel read on torch's stream before step().
    new: of weights read on that stream after step(). state: of masters and moments."""

    rounds: int = 0
    old: int = 0
    new: int = 0
    state: int = 0

    @property
    def bits(self) -> int:
        return self.old + self.new + self.state

    def __str__(self) -> str:
        return (f"{self.old} bits of old weights, {self.new} of new ones and {self.state} of the "
                "state differ")  # fmt: skip


class Tensors(nn.Module):
    """Parameters of two dtypes that fill several frames, and small ones."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)

        def weight(count: int, dtype: torch.dtype) -> nn.Parameter:
            return nn.Parameter(torch.randn(count, generator=generator).to(dtype))

        self.large = weight(elements, torch.float32)
        self.short = weight(elements // 2 + 1, torch.bfloat16)
        self.small = weight(13, torch.float32)


class Streams:
    """Torch's current stream in each round, as one of WAYS says. The stand-in has one stream."""

    def __init__(self, place: RealGpu | Standin, way: str) -> None:
        self._real = place.real
        sides = 0 if not place.real else WAYS.index(way)
        self._sides = [torch.cuda.Stream() for _ in range(sides)]

    @contextlib.contextmanager
    def current(self, number: int) -> Iterator[None]:
        if not self._sides:
            yield
            return
        side = self._sides[number % len(self._sides)]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield
        torch.cuda.current_stream().wait_stream(side)

    def be_late(self) -> None:
        """Work that takes long, on the current stream."""
        if self._real:
            torch.cuda._sleep(LATE_CYCLES)


def gradients(model: nn.Module, number: int) -> list[torch.Tensor]:
    """Of one round, on the host; no two rounds have the same."""
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(p.shape, generator=generator).to(p.dtype) for p in model.parameters()]


def late_and_early(place: RealGpu | Standin, endpoints: list[str], way: str, rounds: int) -> Seen:
    """Trains; in each round old weights are read and gradients are written late on torch's stream,
    new weights are read and gradients overwritten on it as soon as step() returns."""
    model = Tensors(3 << 20 if place.real else 100_000)
    sizes = {} if place.real else {"extent_elements": 16384, "tile_elements": 64}
    twins = Twins(place, endpoints, model, pinned_bytes=8 << 20, **sizes)
    there = list(twins.there.parameters())
    for p in there:
        p.grad = place.put_tensor(torch.full_like(p.detach(), 3.0))
    twins.ours.attach()
    twins.reference.attach()
    streams, seen = Streams(place, way), Seen()
    for number in range(rounds):
        before = [q.detach().clone() for q in twins.here.parameters()]
        fresh = gradients(model, number)
        ready = [place.put_tensor(g) for g in fresh]
        place.finish()
        with streams.current(number):
            old, new = one_round(twins, streams, ready)
        step_reference(twins, fresh)
        place.finish()
        after = [q.detach() for q in twins.here.parameters()]
        seen.old += sum(map(differing_bits, old, before))
        seen.new += sum(map(differing_bits, new, after))
        seen.rounds += 1
    seen.state = twins.state_bits()
    twins.close()
    return seen


def one_round(
    twins: Twins, streams: Streams, ready: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The weights as the current stream reads them before and after step()."""
    there = list(twins.there.parameters())
    streams.be_late()
    old = [p.detach().clone() for p in there]
    streams.be_late()
    for p, gradient in zip(there, ready, strict=True):
        p.grad.copy_(gradient)
    twins.ours.step()
    new = [p.detach().clone() for p in there]
    for p in there:
        p.grad.fill_(3.0)
    return old, new


def step_reference(twins: Twins, fresh: list[torch.Tensor]) -> None:
    for q, gradient in zip(twins.here.parameters(), fresh, strict=True):
        q.grad = gradient
    twins.reference.step()
