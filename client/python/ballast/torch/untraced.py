"""torch.optim.Optimizer, whose bookkeeping does not import torch.compile's machinery.

Comes from: ballast.torch.service_optimizer. Goes to: torch.optim. torch wraps four methods so that
torch.compile does not trace them. The wrappers import torch._dynamo when they first run, and that
takes more than a second of CPU in each trainer. While that module is not imported, nothing traces,
and the methods need no wrapper.
Thread safety: as torch.optim.Optimizer.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch


def _untraced(name: str) -> Callable[..., Any]:
    """The method of torch.optim.Optimizer, wrapped only where something may trace it."""
    wrapped = getattr(torch.optim.Optimizer, name)
    plain = getattr(wrapped, "__wrapped__", wrapped)

    @functools.wraps(plain)
    def method(*args: Any, **kwargs: Any) -> Any:
        return (wrapped if "torch._dynamo" in sys.modules else plain)(*args, **kwargs)

    return method


class UntracedOptimizer(torch.optim.Optimizer):
    """As torch.optim.Optimizer."""

    add_param_group = _untraced("add_param_group")
    load_state_dict = _untraced("load_state_dict")
    state_dict = _untraced("state_dict")
    zero_grad = _untraced("zero_grad")
