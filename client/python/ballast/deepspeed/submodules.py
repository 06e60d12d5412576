"""Modules below `deepspeed` that scripts import: what their names are here, and errors for others.

Comes from: the import statement, for names below ballast.deepspeed that no file here has. Goes to:
the modules of ballast.deepspeed and ballast.ops. Thread safety: as Python's import.

`from ballast.deepspeed.ops.adam import FusedAdam` finds a module made from the table below, and
from the names whose use, not whose import, is refused. Any other name raises ModuleNotFoundError
with what to use. Python drops that of a missing submodule where `from package import name` looks
for one, and says less. So its `name` is DeepSpeed's own.
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
from ballast.deepspeed.refused import REFUSED, refused

_ROOT = "ballast.deepspeed"
_OPTIMIZERS, _LOCAL = f"{_ROOT}.optimizers", f"{_ROOT}.local_optimizers"
_TOOLS = f"{_ROOT}.script_tools"
_ZERO, _SCHEDULES = f"{_ROOT}.zero", f"{_ROOT}.lr_schedules"
_ACCELERATOR, _BUILDERS = f"{_ROOT}.accelerator", "ballast.ops.op_builder"


def _at(place: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), place)


_CPU_ADAM, _FUSED_ADAM = _at(_OPTIMIZERS, "DeepSpeedCPUAdam"), _at(_OPTIMIZERS, "FusedAdam")
_ADAGRAD, _LAMB = _at(_OPTIMIZERS, "DeepSpeedCPUAdagrad"), _at(_LOCAL, "FusedLamb")
_CPU_LION, _FUSED_LION = _at(_LOCAL, "DeepSpeedCPULion"), _at(_LOCAL, "FusedLion")
_LOGS = _at(f"{_ROOT}.logs", "logger log_dist")
_VALUES = _at(f"{_ROOT}.utils", "safe_get_full_fp32_param safe_get_full_grad "
              "safe_get_full_optimizer_state safe_set_full_grad")  # fmt: skip
_RECOMPUTE = _at(f"{_ROOT}.checkpointing", "checkpoint configure is_configured")
_CLONES = _at(_TOOLS, "clone_tensors_for_torch_save")
_PARTITION = _at(_ZERO, "GatheredParameters Init ZeroParamStatus ZeroParamType "
                        "register_external_parameter")  # fmt: skip
_LEAVES = _at(_ZERO, "get_z3_leaf_modules set_z3_leaf_module set_z3_leaf_modules "
                     "unset_z3_leaf_modules z3_leaf_module z3_leaf_parameter")  # fmt: skip
_GROUPS = _at(f"{_ROOT}.comm", "_get_data_parallel_group _get_data_parallel_rank "
              "_get_data_parallel_world_size _get_model_parallel_world_size "
              "_get_sequence_parallel_rank _get_sequence_parallel_world_size")  # fmt: skip

# Modules by their names below `deepspeed`; of each the names that it has, and where they are. A
# text in place of them: the module with all of its names.
MODULES: dict[str, dict[str, str] | str] = {
    **{name: {} for name in REFUSED if name},
    "accelerator.abstract_accelerator": _at(_ACCELERATOR, "DeepSpeedAccelerator"),
    "accelerator.real_accelerator": _ACCELERATOR,
    "checkpoint": {},
    "checkpoint.utils": _CLONES,
    "comm.comm": f"{_ROOT}.comm",
    "constants": _at(_TOOLS, "CROSS_RANK CROSS_SIZE LOCAL_RANK TORCH_DISTRIBUTED_DEFAULT_PORT"),
    "git_version_info": _at(_TOOLS, "git_branch git_hash torch_info version"),
    "moe.utils": _at(_TOOLS, "has_moe_layers is_moe_param is_moe_param_group "
                             "split_params_into_different_moe_groups_for_optimizer"),
    "ops": _at(_BUILDERS, "__compatible_ops__"),
    "ops.adagrad": _ADAGRAD,
    "ops.adagrad.cpu_adagrad": _ADAGRAD,
    "ops.adam": {**_CPU_ADAM, **_FUSED_ADAM},
    "ops.adam.cpu_adam": _CPU_ADAM,
    "ops.adam.fused_adam": _FUSED_ADAM,
    "ops.aio": _at(_BUILDERS, "AsyncIOBuilder"),
    "ops.lamb": _LAMB,
    "ops.lamb.fused_lamb": _LAMB,
    "ops.lion": {**_CPU_LION, **_FUSED_LION},
    "ops.lion.cpu_lion": _CPU_LION,
    "ops.lion.fused_lion": _FUSED_LION,
    "ops.op_builder": _BUILDERS,
    "ops.op_builder.all_ops": _at(_BUILDERS, "ALL_OPS"),
    "ops.op_builder.async_io": _at(_BUILDERS, "AsyncIOBuilder"),
    "runtime": {},
    "runtime.activation_checkpointing": {},
    "runtime.activation_checkpointing.checkpointing": _RECOMPUTE,
    "runtime.config": _at(_TOOLS, "ADAGRAD_OPTIMIZER ADAMW_OPTIMIZER ADAM_OPTIMIZER LAMB_OPTIMIZER "
                                  "LION_OPTIMIZER"),
    "runtime.dataloader": _at(f"{_ROOT}.loader", "RepeatingLoader"),
    "runtime.engine": _at(f"{_ROOT}.engine", "DeepSpeedEngine"),
    "runtime.lr_schedules": _SCHEDULES,
    "runtime.utils": _at(_TOOLS, "ensure_directory_exists noop_context noop_decorator "
                                 "see_memory_usage set_random_seed"),
    "runtime.zero": _PARTITION,
    "runtime.zero.config": _at(_ZERO, "ZeroStageEnum"),
    "runtime.zero.offload_config": _at(_ZERO, "OffloadDeviceEnum OffloadStateTypeEnum"),
    "runtime.zero.partition_parameters": {
        **_PARTITION, **_at(_ZERO, "unregister_external_parameter"),
    },
    "runtime.zero.utils": _at(_ZERO, "is_zero_param"),
    "utils.groups": _GROUPS,
    "utils.logging": _LOGS,
    "utils.nvtx": _at(_TOOLS, "instrument_w_nvtx"),
    "utils.tensor_fragment": _VALUES,
    "utils.torch": _at(_TOOLS, "required_torch_version"),
    "utils.z3_leaf_module": _LEAVES,
}  # fmt: skip


def advise(name: str) -> Callable[[str], Any]:
    """A module's __getattr__: submodules, names refused at their use, and AttributeError with the
    alternative. name: of the module, below `deepspeed`."""

    def __getattr__(attribute: str) -> Any:
        full = f"{name}.{attribute}".lstrip(".")
        if full in MODULES:
            return importlib.import_module(f"{_ROOT}.{full}")
        found = refused(name, attribute)
        if found is None:
            raise AttributeError(advice(full))
        return found

    return __getattr__


def find() -> None:
    """Names below ballast.deepspeed are looked for here from now on, after all other places."""
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
        if isinstance(names, str):
            whole = importlib.import_module(names)
            module.__dict__.update({k: v for k, v in vars(whole).items() if k[:2] != "__"})
            module.__getattr__ = lambda name: getattr(whole, name)  # type: ignore[method-assign]
            return
        for name, place in names.items():
            setattr(module, name, getattr(importlib.import_module(place), name))
        module.__all__ = [name for name in names if name[:2] != "__"]  # type: ignore[attr-defined]
        module.__getattr__ = advise(self._name)  # type: ignore[method-assign]
