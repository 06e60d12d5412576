"""The supported part of DeepSpeed's package `deepspeed.ops`: op_builder, and aio for DeepNVMe.

Comes from: scripts, as `from ballast.ops.op_builder import AsyncIOBuilder`, or as
`deepspeed.ops.op_builder` or `deepspeed.ops.aio` after `import ballast.deepspeed as deepspeed`.
"""

from __future__ import annotations

from typing import Any

from ballast.ops import aio, op_builder

__all__ = ["aio", "op_builder"]


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"ballast.ops has no {name!r}: it has op_builder and aio; make an optimizer with "
        "ballast.torch, such as bt.AdamW"
    )
