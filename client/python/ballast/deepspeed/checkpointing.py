"""deepspeed.checkpointing: torch's recomputation of activations.

Comes from: user code. Goes to: torch.utils.checkpoint. Thread safety: as torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint

from ballast.deepspeed.submodules import advise

__path__: list[str] = []
__getattr__ = advise("runtime.activation_checkpointing")


def checkpoint(function: Callable[..., Any], *inputs: Any) -> Any:
    """Calls function(*inputs), and again in the backward pass, in place of kept activations."""
    return torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False)


def configure(*_: Any, **__: Any) -> None:
    """Accepted; there is nothing to configure."""


def is_configured() -> bool:
    return True
