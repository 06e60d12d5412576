"""A universal checkpoint without masters and state: counters, schedule, untrained tensors.

Comes from: ballast.deepspeed. Goes to: ballast.ds_checkpoint.torch_file. Source: save_checkpoint()
and _load_checkpoint() of deepspeed/runtime/engine.py, 0.19.8. Thread safety: pure functions.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from ballast.ds_checkpoint import torch_file
from ballast.ds_checkpoint.errors import CheckpointError
from ballast.ds_checkpoint.fields import number
from ballast.ds_checkpoint.torch_file import FileTensor
from ballast.ds_checkpoint.universal import LATEST, MODELS
from ballast.ds_checkpoint.unpickle import Record
from ballast.ds_checkpoint.zero_files import NAMES, folder_of

_COUNTERS = ("global_steps", "skipped_steps", "global_samples")
# What DeepSpeed itself writes; all else is the script's client_state.
_THEIRS = {
    *_COUNTERS, "module", "buffer_names", "optimizer", "lr_scheduler", "param_shapes",
    "frozen_param_shapes", "frozen_param_fragments", "shared_params", "data_sampler", "random_ltd",
    "sparse_tensor_module_names", "dp_world_size", "mp_world_size", "ds_config", "ds_version",
    "universal_checkpoint_info", "autotp_universal_checkpoint_info", "ep_world_size",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class UniversalModel:
    """folder: DIR/TAG. counters: global_steps, skipped_steps and, where the file says it,
    global_samples. lr_scheduler: the schedule's state_dict(), or None. module: tensors of the
    module's state dict in the file, read at each look-up. client_state: the script's
    values, and tensors."""

    folder: str
    counters: Mapping[str, int]
    lr_scheduler: Mapping[str, Any] | None
    module: Mapping[str, FileTensor]
    client_state: dict[str, Any]


def universal_model(directory: str | os.PathLike[str], tag: str | None = None) -> UniversalModel:
    """Reads DIR/TAG/*_model_states.pt. tag: that of DIR/latest_universal by default.

    Raises CheckpointError naming the file, if it is missing, damaged or holds an invalid counter.
    """
    folder = folder_of(os.fspath(directory), tag, LATEST)
    paths = [os.path.join(folder, file) for file in MODELS]
    path = next((path for path in paths if os.path.isfile(path)), None)
    if path is None:
        raise CheckpointError(folder, f"has none of {' and '.join(MODELS)}")
    values = torch_file.load(path, NAMES)
    if not isinstance(values, dict):
        raise CheckpointError(path, "holds no dict")
    module = values.get("module")
    module = module if isinstance(module, dict) else {}
    schedule = values.get("lr_scheduler")
    return UniversalModel(
        folder,
        _counters(path, values),
        _plain(schedule) if isinstance(schedule, dict) else None,
        {name: value for name, value in module.items() if isinstance(value, FileTensor)},
        {key: _plain(value) for key, value in values.items()
         if isinstance(key, str) and key not in _THEIRS},
    )  # fmt: skip


def _counters(path: str, values: Mapping[Any, Any]) -> dict[str, int]:
    counters = {}
    for key in _COUNTERS:
        if key not in values:
            continue
        count = number(values[key])
        if count is None or count < 0:
            raise CheckpointError(path, f"{key} is no count")
        counters[key] = count
    return counters


def _plain(value: Any) -> Any:
    """Tensors read; a record, which has no behaviour here, as the dict of its fields."""
    if isinstance(value, FileTensor):
        return value.read()
    if isinstance(value, Record):
        return _plain(value.state) if isinstance(value.state, Mapping) else None
    if isinstance(value, (list, tuple)):
        children = [_plain(child) for child in value]
        return tuple(children) if isinstance(value, tuple) else children
    if isinstance(value, Mapping):
        return {key: _plain(child) for key, child in value.items()}
    return value
