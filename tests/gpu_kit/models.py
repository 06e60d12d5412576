"""Small models that the stages train, and bits of tensors, counted.

Comes from: bits.py, order.py and their helpers. Goes to: torch. Needs no numpy.
"""

from __future__ import annotations

import ctypes
import dataclasses

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a Gpt. words: rows of the tied embedding, which are most of the parameters."""

    words: int = 96
    width: int = 32
    heads: int = 4
    blocks: int = 2
    length: int = 16


SMALL = Size()
LONG = Size(words=12000, width=128, blocks=1)  # frames of 4 MiB are full in fp32 and in 16 bits


class Norm(nn.LayerNorm):
    """May have another dtype than its input and output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class Attention(nn.Module):
    """Causal, with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.inward(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        return self.outward(mixed.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    """Attention and a hidden layer, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = Norm(width), Norm(width)
        self.attention = Attention(width, heads)
        self.hidden, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.back(functional.gelu(self.hidden(self.second(x))))


class Neighbours(nn.Module):
    """A convolution over a token and the one before it; its weight's memory is channels_last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, (2, 1), padding=(1, 0))
        self.conv.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image, weight, bias = x.transpose(1, 2).unsqueeze(-1), self.conv.weight, self.conv.bias
        if not x.is_cuda:  # Some torch have no such convolution of 16 bits there.
            image, weight, bias = image.float(), weight.float(), bias.float()
        mixed = functional.conv2d(image, weight, bias, padding=(1, 0))
        return x + mixed[:, :, :-1, 0].transpose(1, 2).to(x.dtype)


class Gpt(nn.Module):
    """Tied embeddings, attention, a channels_last convolution, and tensors of odd lengths.

    `apart` are parameters that may stay in the host's memory; `spare` takes part only when asked
    for, so that its gradient is None in other rounds.
    """

    def __init__(self, size: Size = SMALL) -> None:
        super().__init__()
        self.size = size
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Embedding(size.length, size.width)
        self.neighbours = Neighbours(size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.blocks))
        self.apart = nn.Linear(size.width, size.width)
        self.spare = nn.Linear(size.width, 5)
        self.norm = Norm(size.width)
        self.head = nn.Linear(size.width, size.words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, with_spare: bool) -> torch.Tensor:
        """The loss of predicting each token from those before it, in fp32."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.neighbours(self.words(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        x = x + torch.tanh(functional.linear(x, *(p.to(x.device) for p in self.apart.parameters())))
        scores = self.head(self.norm(x)).float()
        targets = tokens[:, 1:].reshape(-1)
        loss = functional.cross_entropy(scores[:, :-1].reshape(len(targets), -1), targets)
        return loss + self.spare(x).float().square().mean() if with_spare else loss


def seeded(size: Size, dtype: torch.dtype) -> Gpt:
    """A model with the same weights each time, on the host."""
    torch.manual_seed(3)
    model = Gpt(size).to(dtype)
    with torch.no_grad():
        model.words.weight.mul_(0.1)
    return model


def tokens(size: Size, seed: int, rows: int = 4) -> torch.Tensor:
    """A batch on the host, fixed by the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, size.words, (rows, size.length), generator=generator)


def differing_bits(a: torch.Tensor, b: torch.Tensor) -> int:
    """Bits that differ in two tensors of one dtype and shape, wherever they are."""
    if a.dtype != b.dtype or a.shape != b.shape:
        raise ValueError(f"{a.dtype} {tuple(a.shape)} beside {b.dtype} {tuple(b.shape)}")
    here, there = (t.detach().to("cpu").contiguous().view(-1).view(torch.uint8) for t in (a, b))
    return 0 if torch.equal(here, there) else (_number(here) ^ _number(there)).bit_count()


def _number(memory: torch.Tensor) -> int:
    return int.from_bytes(ctypes.string_at(memory.data_ptr(), memory.nbytes), "little")
