"""Small functions of DeepSpeed that scripts call: seeds, memory, versions, copies of tensors.

Comes from: scripts, by DeepSpeed's own paths (ballast.deepspeed.submodules). Thread safety: pure
functions, but for seeds.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
from collections.abc import Callable
from typing import Any

import torch

from ballast.deepspeed import comm
from ballast.deepspeed.accelerator import get_accelerator
from ballast.deepspeed.logs import logger
from ballast.errors import Unsupported, at_border

VERSION = "0.19.8"  # of DeepSpeed, whose names and behaviour these are
noop_context = contextlib.nullcontext
_GB = 1 << 30


def see_memory_usage(message: str, force: bool = False) -> None:
    """Logs the device's memory on rank 0, below the message. Without `force` nothing happens."""
    if not force or comm.get_rank() != 0:
        return
    gc.collect()
    device = get_accelerator()
    used = device.total_memory() - device.available_memory()
    logger.info(
        f"{message}\nMA {device.memory_allocated() / _GB:.2f} GB, "
        f"Max_MA {device.max_memory_allocated() / _GB:.2f} GB, "
        f"CA {device.memory_reserved() / _GB:.2f} GB, used of {device.device_name()}: "
        f"{used / _GB:.2f} GB",
        stacklevel=2,
    )
    device.reset_peak_memory_stats()


def set_random_seed(seed: int) -> None:
    """Seeds random, numpy where it is installed, and torch."""
    random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(seed % (1 << 32))
    torch.manual_seed(seed % (1 << 63))


def clone_tensors_for_torch_save(item: Any, device: Any = torch.device("cpu")) -> Any:
    """A copy of `item` whose tensors, in lists, tuples and dicts, too, are copies on `device`."""
    if isinstance(item, torch.Tensor):
        return item.detach().to(device, copy=True)
    if isinstance(item, (list, tuple)):
        return type(item)([clone_tensors_for_torch_save(one, device) for one in item])
    if isinstance(item, dict):
        return type(item)((k, clone_tensors_for_torch_save(v, device)) for k, v in item.items())
    return item


def required_torch_version(
    min_version: float | str | None = None, max_version: float | str | None = None
) -> bool:
    """Whether torch is at least and at most of these versions."""
    has = _numbers(torch.__version__)
    low, high = _numbers(min_version), _numbers(max_version)
    return not (low and low > has) and not (high and high < has)


def _numbers(version: float | str | None) -> tuple[int, ...]:
    text = "" if version is None else str(version).partition("+")[0]
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def ensure_directory_exists(filename: str) -> None:
    """Makes the directory of a file."""
    os.makedirs(os.path.dirname(filename) or ".", exist_ok=True)


def instrument_w_nvtx(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself."""
    return func


noop_decorator = instrument_w_nvtx


def is_moe_param(param: Any) -> bool:
    """Whether a parameter is one of DeepSpeed's experts."""
    return getattr(param, "allreduce", True) is False


def is_moe_param_group(param_group: dict[str, Any]) -> bool:
    """Whether a param group has only such parameters."""
    return bool(param_group.get("moe"))


@at_border
def split_params_into_different_moe_groups_for_optimizer(
    param_groups: Any, max_group_size: Any = None
) -> list[dict[str, Any]]:
    """The groups, as a list. Unsupported where one has parameters of experts."""
    groups = [param_groups] if isinstance(param_groups, dict) else list(param_groups)
    if any(is_moe_param(p) for group in groups for p in group["params"]):
        raise Unsupported("param_groups has parameters of experts: each trainer has all of a model")
    return groups


def has_moe_layers(m: torch.nn.Module) -> tuple[bool, int]:
    """(False, 0): there are no layers of experts here."""
    return False, 0


# Values of constants that scripts import, by DeepSpeed's names.
CONSTANTS = {
    "ADAGRAD_OPTIMIZER": "adagrad", "ADAMW_OPTIMIZER": "adamw", "ADAM_OPTIMIZER": "adam",
    "LAMB_OPTIMIZER": "lamb", "LION_OPTIMIZER": "lion",
    "CROSS_RANK": "CROSS_RANK", "CROSS_SIZE": "CROSS_SIZE", "LOCAL_RANK": "LOCAL_RANK",
    "TORCH_DISTRIBUTED_DEFAULT_PORT": 29500,
    "torch_info": {
        "version": ".".join(torch.__version__.split(".")[:2]), "bf16_support": True,
        "cuda_version": torch.version.cuda or "0.0", "nccl_version": "0.0", "hip_version": "0.0",
    },
    "version": VERSION, "git_hash": "unknown", "git_branch": "unknown",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in CONSTANTS:
        return CONSTANTS[name]
    raise AttributeError(f"{__name__} has no {name!r}")
