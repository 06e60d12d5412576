"""The part of deepspeed.utils that training scripts use: fp32 values of a parameter, lines of a
log.

Comes from: user code. Goes to: the optimizers of engines. Thread safety: as ballast.torch.
"""

from __future__ import annotations

from typing import Any

import torch

from ballast.deepspeed import gradients
from ballast.deepspeed.gradients import safe_get_full_grad, safe_set_full_grad
from ballast.deepspeed.loader import RepeatingLoader
from ballast.deepspeed.logs import log_dist, logger
from ballast.deepspeed.script_tools import instrument_w_nvtx
from ballast.deepspeed.submodules import advise
from ballast.deepspeed.zero import (
    get_z3_leaf_modules,
    set_z3_leaf_module,
    set_z3_leaf_modules,
    unset_z3_leaf_modules,
    z3_leaf_module,
    z3_leaf_parameter,
)
from ballast.errors import BadArgument, at_border
from ballast.torch import export

__all__ = [
    "RepeatingLoader", "get_z3_leaf_modules", "instrument_w_nvtx", "log_dist", "logger",
    "safe_get_full_fp32_param", "safe_get_full_grad", "safe_get_full_optimizer_state",
    "safe_set_full_grad", "set_z3_leaf_module", "set_z3_leaf_modules", "unset_z3_leaf_modules",
    "z3_leaf_module", "z3_leaf_parameter",
]  # fmt: skip
__path__: list[str] = []  # import statements ask ballast.deepspeed.submodules for other names


@at_border
def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor:
    """The fp32 master of a parameter, on the CPU, of its shape; fetched from the servers.

    Between rounds, after the first one; downloads 4 bytes per parameter of the job. BadArgument
    for a parameter of no engine.
    """
    return _array_of(param, "master")


@at_border
def safe_get_full_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor:
    """A state array of a parameter, such as "exp_avg"; otherwise as safe_get_full_fp32_param()."""
    return _array_of(param, optim_state_key)


def _array_of(param: torch.Tensor, wanted: str) -> torch.Tensor:
    for optimizer in [engine.optimizer for engine in list(gradients.engines)]:
        if optimizer is None:
            continue
        membership = optimizer._membership
        if all(entry.param is not param for entry in membership.entries):
            continue
        keys = optimizer._kind.arrays(membership.options)
        if wanted not in keys:
            raise BadArgument(f"there is no state {wanted!r}; there are: {', '.join(keys)}")
        session = membership.attached("safe_get_full_fp32_param")
        return export.one(session, membership.manifest, param, keys, wanted)
    raise BadArgument("the parameter is in no engine that has stepped")


__getattr__ = advise("utils")
