"""Modules below `deepspeed` that scripts import: those with a counterpart, and an error for others.

Comes from: the import statement, for names below ballast.deepspeed that no file here has. Goes to:
the modules of ballast.deepspeed and ballast.ops. Thread safety: as Python's import.

`from ballast.deepspeed.ops.adam import FusedAdam` finds a module that is made of the table below.
Any other name raises ModuleNotFoundError with what to use. Python drops that of a missing submodule
where `from package import name` looks for one, and says less. So its `name` is DeepSpeed's own.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ballast.deepspeed.names import advice

_ROOT = "ballast.deepspeed"
_ADAM = {"DeepSpeedCPUAdam": f"{_ROOT}.optimizers", "FusedAdam": f"{_ROOT}.optimizers"}
_ADAGRAD = {"DeepSpeedCPUAdagrad": f"{_ROOT}.optimizers"}
_AIO = {"AsyncIOBuilder": "ballast.ops.op_builder"}
_LOGS = {"logger": f"{_ROOT}.logs", "log_dist": f"{_ROOT}.logs"}
_VALUES = dict.fromkeys(
    ("safe_get_full_fp32_param", "safe_get_full_optimizer_state"), f"{_ROOT}.utils"
)
_COMM = dict.fromkeys(
    ("barrier", "get_local_rank", "get_rank", "get_world_size", "init_distributed",
     "is_initialized", "log_summary"), f"{_ROOT}.comm"
)  # fmt: skip
_RECOMPUTE = dict.fromkeys(("checkpoint", "configure", "is_configured"), f"{_ROOT}.checkpointing")

# Modules by their names below `deepspeed`; of each the names that it has, and where they are.
MODULES: dict[str, dict[str, str]] = {
    "comm.comm": _COMM,
    "ops": {},
    "ops.adagrad": _ADAGRAD,
    "ops.adagrad.cpu_adagrad": _ADAGRAD,
    "ops.adam": _ADAM,
    "ops.adam.cpu_adam": {"DeepSpeedCPUAdam": f"{_ROOT}.optimizers"},
    "ops.adam.fused_adam": {"FusedAdam": f"{_ROOT}.optimizers"},
    "ops.aio": _AIO,
    "ops.op_builder": {**_AIO, "GDSBuilder": "ballast.ops.op_builder"},
    "ops.op_builder.async_io": _AIO,
    "runtime": {},
    "runtime.activation_checkpointing": {},
    "runtime.activation_checkpointing.checkpointing": _RECOMPUTE,
    "runtime.dataloader": {"RepeatingLoader": f"{_ROOT}.loader"},
    "runtime.engine": {"DeepSpeedEngine": f"{_ROOT}.engine"},
    "utils.logging": _LOGS,
    "utils.tensor_fragment": _VALUES,
}


def advise(name: str) -> Callable[[str], Any]:
    """A module's __getattr__: AttributeError with what to use. name: below `deepspeed`."""

    def __getattr__(attribute: str) -> Any:
        raise AttributeError(advice(f"{name}.{attribute}"))

    return __getattr__


def find() -> None:
    """Names below ballast.deepspeed are looked for here from now on, behind all other places."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_ROOT}.") or fullname.endswith("__"):
            return None
        name = fullname.removeprefix(f"{_ROOT}.")
        if name in MODULES:
            return ModuleSpec(fullname, _Made(name), origin="deepspeed", is_package=True)
        raise ModuleNotFoundError(advice(name), name=f"deepspeed.{name}")


class _Made(Loader):
    """Fills the module `name` from the table."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exec_module(self, module: ModuleType) -> None:
        names = MODULES[self._name]
        for name, place in names.items():
            setattr(module, name, getattr(importlib.import_module(place), name))
        module.__all__ = list(names)  # type: ignore[attr-defined]
        module.__getattr__ = advise(self._name)  # type: ignore[method-assign]
