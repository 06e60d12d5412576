"""What DeepSpeed 0.19.8 itself makes of a configuration: legal or not, and with which values.

Comes from: test_ds_agreement.py under `pytest -m deepspeed`, and `python deepspeed_oracle.py`,
which records. Goes to: DeepSpeedConfig, its pydantic models and its schedulers; needs deepspeed.
Nothing of DeepSpeed's engine is made, so what only the engine refuses is not seen here.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

with contextlib.redirect_stdout(io.StringIO()):
    import torch
    from deepspeed import comm
    from deepspeed.runtime import lr_schedules
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel
    from deepspeed.runtime.constants import LEGACY_FUSION_DEFAULT
    from deepspeed.utils import logger
    from pydantic import ValidationError

from ds_draws import SIZES, configuration

logger.setLevel(logging.ERROR)

HERE = Path(__file__).parent
RECORDED = HERE / "deepspeed_verdicts.jsonl"
READ = HERE / "deepspeed_read.json"
COUNT = 300
# Objects of a running process, which no file can hold, and attributes other than keys.
NOT_IN_FILES = (
    "tensor_parallel.dtype", "tensor_parallel.tp.mpu", "tensor_parallel.tp.tp_group",
    "autotuning.start_step", "autotuning.end_step",
)  # fmt: skip
# Attributes of DeepSpeedConfig that hold a section, with the section's path.
SECTIONS = {
    "zero_optimization": "zero_config",
    "fp16": "float16_config",
    "bf16": "bfloat16_config",
    "hybrid_engine": "hybrid_engine",
    "compile": "compile_config",
    "timers.throughput": "timers_config",
    "tensor_parallel": "tensor_parallel_config",
    "weight_quantization": "weight_quantization_config",
    "activation_checkpointing": "activation_checkpointing_config",
    "flops_profiler": "flops_profiler_config",
    "autotuning": "autotuning_config",
    "aio": "aio_config",
    "expert_parallel": "expert_parallel_config",
    "pipeline": "pipeline",
}
SCALARS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "managed_gradient_accumulation", "steps_per_print", "dump_state", "disable_python_gc",
    "disable_allgather", "communication_data_type", "seq_parallel_communication_data_type",
    "prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op",
    "gradient_clipping", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "memory_breakdown", "dataloader_drop_last", "log_level",
)  # fmt: skip
DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class _World:
    """Stands in for mpu: its only number is the count of trainers."""

    def __init__(self, world: int) -> None:
        self._world = world

    def get_data_parallel_world_size(self) -> int:
        return self._world


def verdict(config: Mapping[str, Any], world: int) -> dict[str, Any]:
    """{"values": by dotted path} where DeepSpeed takes it, else {"refused": [[path, why], ...]}."""
    comm.get_rank = lambda *_: 0
    given = json.loads(json.dumps(config))
    try:
        made = DeepSpeedConfig(given, mpu=_World(world))
        _make_schedule(made)
    except ValidationError as error:
        return {"refused": [[_place(error, e), e["type"]] for e in error.errors()]}
    except Exception as error:  # DeepSpeed refuses with errors of every type
        text = " ".join(str(error).split())[:100]
        return {"refused": [["", f"{type(error).__name__}: {text}"]]}
    return {"values": dict(values(made))}


def _place(error: ValidationError, found: Mapping[str, Any]) -> str:
    return ".".join(map(str, (error.title, *found["loc"])))


def _make_schedule(made: DeepSpeedConfig) -> None:
    """As DeepSpeedEngine._scheduler_from_config, with as many groups as a list has values."""
    name = made.scheduler_name
    if name is None:
        return
    params = dict(made.scheduler_params or {}).values()
    count = max([1, *(len(value) for value in params if isinstance(value, list))])
    groups = [{"params": [torch.zeros(1, requires_grad=True)]} for _ in range(count)]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    source = lr_schedules if hasattr(lr_schedules, name) else torch.optim.lr_scheduler
    getattr(source, name)(optimizer, **made.scheduler_params)


def values(made: DeepSpeedConfig) -> Iterator[tuple[str, Any]]:
    """The effective value of each key that DeepSpeedConfig holds."""
    yield from ((name, plain(getattr(made, name))) for name in SCALARS)
    for path, name in SECTIONS.items():
        yield from flat(path, getattr(made, name))
    for name in ("tensorboard", "wandb", "csv_monitor", "comet"):
        yield from flat(name, getattr(made.monitor_config, name))
    if made.comms_config.comms_logger_enabled:
        yield from flat("comms_logger", made.comms_config.comms_logger)
    yield from flat("checkpoint", made.checkpoint_config)
    for name in ("param_dtype", "buffer_dtype", "grad_accum_dtype", "keep_in_fp32_modules"):
        yield f"data_types.{name}", plain(getattr(made, name))


def flat(path: str, section: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(section, DeepSpeedConfigModel):
        fields = type(section).model_fields.items()
        named = {field.alias or name: getattr(section, name, None) for name, field in fields}
    elif isinstance(section, Mapping):
        named = dict(section)
    else:
        named = {k: v for k, v in vars(section).items() if k[0] != "_"} if section else {}
    for name, value in named.items():
        if isinstance(value, DeepSpeedConfigModel) or (name == "writer" and value):
            yield from flat(f"{path}.{name}", value)
        else:
            if f"{path}.{name}" not in NOT_IN_FILES:
                yield f"{path}.{name}", plain(value)


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value if isinstance(value, (bool, int, float, str, dict)) else None


class Spy(dict):
    """A section that notes each key for which it is asked, with the default."""

    def __init__(self, path: str, log: dict[str, Any], inside: Mapping[str, Any]) -> None:
        self.path = f"{path}." if path else ""
        self.log = log
        super().__init__({k: Spy(self.path + k, log, v) for k, v in inside.items()})

    def get(self, name: str, default: Any = None) -> Any:
        self.log[self.path + name] = plain(default)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.log.setdefault(f"{self.path}{name}", None)
        return super().__contains__(name)

    def keys(self) -> Any:
        return self


# Sections without a pydantic model: their keys show in the reads.
ASKED = {
    "activation_checkpointing": {}, "flops_profiler": {}, "aio": {}, "data_types": {},
    "torch_autocast": {}, "autotuning": {"model_info": {}}, "optimizer": {}, "scheduler": {},
    "checkpoint": {"parallel_write": {}, "writer": {}},
    "data_efficiency": {"data_sampling": {}, "data_routing": {}},
    "expert_parallel": {"enabled": {}},
    "timers": {},
}  # fmt: skip


# All pydantic models, and the size that must be given.
EVERY_SECTION = {
    "train_batch_size": 1, "comms_logger": {}, "weight_quantization": {},
    "zero_optimization": {"offload_optimizer": {}, "offload_param": {}, "zenflow": {}},
}  # fmt: skip
# Values given here or following from these, a mark of DeepSpeed's own, and sections.
NOT_DEFAULTS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "expert_parallel.expert_w3", "pipeline", "data_efficiency.data_sampling.dynamic_batching",
)  # fmt: skip


def read_keys() -> dict[str, Any]:
    """Each key that DeepSpeed 0.19.8 reads from a file, with its default; None: none is seen."""
    log: dict[str, Any] = {}
    spy = Spy("", log, ASKED)
    spy["train_batch_size"] = 1
    spy["checkpoint"]["tag_validation"] = "Warn"
    dict.__setitem__(spy["checkpoint"]["parallel_write"], "pipeline_stage", False)
    made = DeepSpeedConfig.__new__(DeepSpeedConfig)
    made._param_dict, made.world_size, made.global_rank = spy, 1, 0
    made._initialize_params(spy)
    made._do_warning_check()
    log.update(values(DeepSpeedConfig(json.loads(json.dumps(EVERY_SECTION)))))
    log["optimizer.legacy_fusion"] = LEGACY_FUSION_DEFAULT
    for name in NOT_DEFAULTS:
        log[name] = None
    return {name: log[name] for name in sorted(log)}


def lines(count: int) -> Iterator[dict[str, Any]]:
    """The smallest configuration with all its values, and `count` draws with their verdicts; of
    their values only sizes and those that differ from the first one's."""
    config, world = {"train_batch_size": 1}, 1
    defaults = verdict(config, world)["values"]
    yield {"draw": None, "config": config, "world": world, "values": defaults}
    for number in range(count):
        config, world = configuration(number)
        found = verdict(config, world)
        if "values" in found:
            kept = found["values"].items()
            found["values"] = {
                k: v for k, v in kept if k in SIZES or k not in defaults or defaults[k] != v
            }
        yield {"draw": number, "config": config, "world": world, **found}


def main() -> None:
    """Records the first COUNT draws, and the keys that DeepSpeed reads."""
    written = (json.dumps(line, separators=(",", ":")) for line in lines(COUNT))
    RECORDED.write_text("".join(f"{line}\n" for line in written))
    READ.write_text(json.dumps(read_keys(), indent=0) + "\n")


if __name__ == "__main__":
    sys.exit(main())
