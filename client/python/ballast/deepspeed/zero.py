"""deepspeed.zero, below stage 3: every trainer has each parameter whole, so nothing is gathered.

Comes from: scripts that also run at stage 3, as `with zero.GatheredParameters(...)`. A ds_config of
stage 3 is refused by initialize(). Thread safety: nothing here is shared.
Source: deepspeed/runtime/zero and deepspeed/utils/z3_leaf_module.py of 0.19.8.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import torch

from ballast.deepspeed.submodules import advise
from ballast.errors import BadArgument, at_border

__path__: list[str] = []
__getattr__ = advise("runtime.zero")


class _Context:
    """Does nothing; takes all arguments of DeepSpeed's class."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Init(_Context):
    """A model built in this context is built as outside of it."""


class GatheredParameters(_Context):
    """Parameters are whole in this context as outside of it; a change counts on this trainer."""


class ZeroParamType(enum.Enum):
    NORMAL = 1
    PARTITIONED = 2
    REMOTE = 3


class ZeroParamStatus(enum.Enum):
    """Of a parameter's attribute ds_status, which none has here."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class ZeroStageEnum(enum.IntEnum):
    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


class OffloadDeviceEnum(str, enum.Enum):
    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, enum.Enum):
    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


def is_zero_param(parameter: Any) -> bool:
    """Whether the parameter is one of stage 3: no."""
    return hasattr(parameter, "ds_id")


def register_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """Has no effect: a parameter that another module uses needs nothing."""


def unregister_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """Has no effect, like register_external_parameter()."""


@at_border
def set_z3_leaf_modules(
    model: torch.nn.Module,
    leaf_module_classes: Sequence[type | str],
    raise_if_not_found: bool = True,
) -> list[torch.nn.Module]:
    """Marks the modules of these classes, given as types or names, and returns them.

    The mark concerns stage 3 alone. BadArgument if there is none, unless raise_if_not_found is
    False.
    """
    return _mark(model, leaf_module_classes, True, raise_if_not_found)


@at_border
def unset_z3_leaf_modules(
    model: torch.nn.Module,
    leaf_module_classes: Sequence[type | str],
    raise_if_not_found: bool = True,
) -> list[torch.nn.Module]:
    """Takes the mark away; otherwise as set_z3_leaf_modules()."""
    return _mark(model, leaf_module_classes, False, raise_if_not_found)


def get_z3_leaf_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The marked modules."""
    return [module for module in model.modules() if z3_leaf_module(module)]


def z3_leaf_module(model: torch.nn.Module) -> bool:
    """Whether this module is marked."""
    return bool(getattr(model, "_z3_leaf", False))


def z3_leaf_parameter(model: torch.nn.Parameter) -> bool:
    """False: only initialize() at stage 3 marks parameters."""
    return hasattr(model, "ds_z3_leaf_module")


def set_z3_leaf_module(model: torch.nn.Module, flag: bool) -> None:
    """Marks one module, or takes its mark away."""
    model._z3_leaf = flag  # type: ignore[assignment]


def _mark(
    model: torch.nn.Module, classes: Sequence[type | str], flag: bool, must: bool
) -> list[torch.nn.Module]:
    found = [module for module in model.modules() if any(_is(module, one) for one in classes)]
    if must and not found:
        raise BadArgument(f"no module of {list(classes)} is in the model; leave the call out")
    for module in found:
        set_z3_leaf_module(module, flag)
    return found


def _is(module: torch.nn.Module, wanted: type | str) -> bool:
    kind = type(module)
    if isinstance(wanted, str):
        return wanted in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}")
    return isinstance(module, wanted)
