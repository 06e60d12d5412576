"""A byte-level GPT of 6.4 M parameters and the text it learns: Python's own standard library.

Comes from: train.py, referee.py. Plain torch; knows nothing of Ballast.
"""

from __future__ import annotations

import math
import pathlib
import sysconfig

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 256
CONTEXT = 128


class Block(nn.Module):
    """Pre-norm transformer block with causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(shape).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ByteGPT(nn.Module):
    """Next-byte model; input: (batch, CONTEXT) bytes as int64, output: logits over 256 bytes."""

    def __init__(self, width: int = 256, layers: int = 8, heads: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight  # tied, as usual
        self.apply(self._init)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model: nn.Module, tokens: torch.Tensor, params: dict | None = None) -> torch.Tensor:
    """Mean cross entropy in nats per byte of a (batch, CONTEXT + 1) batch.

    params: fp32 stand-ins for the model's parameters (16-bit modes compute in fp32 on the CPU).
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if params is None:
        logits = model(inputs)
    else:
        logits = torch.func.functional_call(model, params, (inputs,))
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def standard_library_text(limit_bytes: int = 8 << 20) -> torch.Tensor:
    """Bytes of the standard library's .py files in path order, as a uint8 tensor."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    pieces: list[bytes] = []
    total = 0
    for path in sorted(root.glob("*.py")) + sorted(root.glob("*/*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        data = path.read_bytes()
        pieces.append(data)
        total += len(data)
        if total >= limit_bytes:
            break
    return torch.frombuffer(bytearray(b"".join(pieces)[:limit_bytes]), dtype=torch.uint8)


def batch(text: torch.Tensor, generator: torch.Generator, size: int) -> torch.Tensor:
    """The next (size, CONTEXT + 1) batch that `generator` draws."""
    starts = torch.randint(0, len(text) - CONTEXT - 1, (size,), generator=generator)
    return torch.stack([text[s : s + CONTEXT + 1] for s in starts.tolist()]).long()


def learning_rate(step: int, steps: int, peak: float = 1e-3) -> float:
    """Linear warm-up over a tenth of the run, then a cosine to a tenth of the peak."""
    warm = max(1, steps // 10)
    if step < warm:
        return peak * (step + 1) / warm
    share = (step - warm) / max(1, steps - warm)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))
