"""The GPT that every contestant of the comparison trains, and its input.

Comes from: peer_contestants.py. Pure functions and modules: the same sizes and seed give the same
bits in every process on the same device. Element counts are multiples of 8 where the sizes are.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SEED = 20
BATCHES = 2  # distinct ones, in turn: few, so that a few steps show whether the loss falls


@dataclasses.dataclass(frozen=True)
class Sizes:
    """width: a multiple of heads and of 8. checkpointing: activations are made twice."""

    width: int
    layers: int
    heads: int
    vocabulary: int
    sequence: int
    batch: int
    checkpointing: bool = False

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.batch * self.sequence


SMALLEST = Sizes(width=32, layers=1, heads=2, vocabulary=64, sequence=16, batch=2)
SMALL = Sizes(width=512, layers=8, heads=8, vocabulary=8192, sequence=128, batch=4)
MEDIUM = Sizes(width=1024, layers=24, heads=16, vocabulary=50304, sequence=1024, batch=8,
               checkpointing=True)  # fmt: skip
XL = Sizes(width=1600, layers=48, heads=25, vocabulary=50304, sequence=1024, batch=8,
           checkpointing=True)  # fmt: skip


class Block(torch.nn.Module):
    """Attention and two linear layers, each after a norm and with a shortcut."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads, self.checkpointing = sizes.heads, sizes.checkpointing
        self.before_attention = torch.nn.LayerNorm(width)
        self.attention = torch.nn.Linear(width, 3 * width)
        self.projection = torch.nn.Linear(width, width)
        self.before_wide = torch.nn.LayerNorm(width)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpointing and self.training:
            return checkpoint(self._body, x, use_reentrant=False)
        return self._body(x)

    def _body(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        mixed = self.attention(self.before_attention(x))
        parts = mixed.view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.before_wide(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    """model(tokens) is the mean loss of each next token; tokens are (batch, sequence + 1)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.checkpointing = sizes.checkpointing
        self.embedding = torch.nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = torch.nn.Embedding(sizes.sequence, sizes.width)
        self.blocks = torch.nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.last_norm = torch.nn.LayerNorm(sizes.width)
        self.register_buffer("places", torch.arange(sizes.sequence), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens[:, :-1]) + self.positions(self.places)
        for block in self.blocks:
            x = block(x)
        return self._mean_loss(self.last_norm(x), tokens[:, 1:])

    def _mean_loss(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        if not self.checkpointing:
            return self._loss(x, wanted)
        # Sample by sample: the scores of all are more than the rest of the activations.
        losses = [
            checkpoint(self._loss, one, next_, use_reentrant=False) for one, next_ in zip(x, wanted)
        ]
        return torch.stack(losses).mean()

    def _loss(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        scores = functional.linear(x, self.embedding.weight)
        return functional.cross_entropy(scores.flatten(0, -2).float(), wanted.flatten())


def model(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Gpt:
    """Made on `device`, with values that bf16 can hold, in `dtype`."""
    torch.manual_seed(SEED)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            made = Gpt(sizes)
            with torch.no_grad():
                for name, p in made.named_parameters():
                    fill(name, p, sizes)
    finally:
        torch.set_default_dtype(previous)
    return made.to(dtype)


def fill(name: str, p: torch.Tensor, sizes: Sizes) -> None:
    """GPT-2's first values: norms 1, biases 0, the rest normal; less for the ends of shortcuts."""
    if name.endswith("bias"):
        p.zero_()
    elif p.dim() == 1:
        p.fill_(1.0)
    else:
        ends_shortcut = "projection" in name or "narrow" in name
        p.normal_(0.0, 0.02 / math.sqrt(2 * sizes.layers) if ends_shortcut else 0.02)


def batches(sizes: Sizes, device: torch.device) -> list[torch.Tensor]:
    """Tokens of which the small numbers are frequent, so that there is something to learn."""
    made = []
    for i in range(BATCHES):
        drawn = torch.rand(
            sizes.batch, sizes.sequence + 1, generator=torch.Generator().manual_seed(SEED + i)
        )
        made.append((drawn.pow(3) * sizes.vocabulary).long().to(device))
    return made
