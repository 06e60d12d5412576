"""deepspeed.utils, as far as training scripts use it: fp32 values of one parameter.

Comes from: user code. Goes to: the optimizers of engines. Thread safety: as ballast.torch.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ballast.deepspeed.names import utils_advice
from ballast.errors import BadArgument, at_border
from ballast.torch import export
from ballast.torch.service_optimizer import ServiceOptimizer

# Of the engines that there are.
_optimizers: weakref.WeakSet[ServiceOptimizer] = weakref.WeakSet()


def know(optimizer: ServiceOptimizer) -> None:
    """Parameters of this optimizer are found from now on, as long as it exists."""
    _optimizers.add(optimizer)


@at_border
def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor:
    """The fp32 master of a parameter, on the CPU, of its shape; fetched from the servers.

    Between rounds, behind the first one. BadArgument for a parameter of no engine.
    """
    return _state_of(param)["master"]


@at_border
def safe_get_full_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor:
    """A state array of a parameter, such as "exp_avg"; otherwise as safe_get_full_fp32_param()."""
    state = _state_of(param)
    if optim_state_key not in state:
        raise BadArgument(f"there is no state {optim_state_key!r}; there are: {', '.join(state)}")
    return state[optim_state_key]


def _state_of(param: torch.Tensor) -> dict[str, Any]:
    for optimizer in list(_optimizers):
        membership = optimizer._membership
        if any(entry.param is param for entry in membership.entries):
            keys = optimizer._kind.arrays(membership.options)
            session = membership.attached("safe_get_full_fp32_param")
            return export.one(session, membership.manifest, param, keys)
    raise BadArgument("the parameter is in no engine that has stepped")


def __getattr__(name: str) -> Any:
    raise AttributeError(utils_advice(name))
