"""Second names of keys: deprecated ones, and ones that DeepSpeed accepts next to the first.

Comes from: DeepSpeed's configuration. Goes to: ballast.ds_config.resolve.
"""

from __future__ import annotations

from ballast.ds_config.kinds import BOOLEAN
from ballast.ds_config.row import Alias

_ZERO = "zero_optimization"


def _cpu(value: bool) -> str | None:
    return "cpu" if value else None


# Sections with a second name; the second is read where the first is absent.
SECTIONS = {"bfloat16": "bf16", "tensor_parallel.tensor_parallel": "tensor_parallel.tp"}

# What `zero_optimization: true` and false stand for.
LEGACY_STAGE = {True: 1, False: 0}

ALIASES = (
    Alias(
        f"{_ZERO}.cpu_offload",
        f"{_ZERO}.offload_optimizer.device",
        convert=_cpu,
        kind=BOOLEAN,
        excludes=f"{_ZERO}.offload_optimizer",
    ),
    Alias(
        f"{_ZERO}.cpu_offload_param",
        f"{_ZERO}.offload_param.device",
        convert=_cpu,
        kind=BOOLEAN,
        excludes=f"{_ZERO}.offload_param",
    ),
    Alias(
        f"{_ZERO}.cpu_offload_use_pin_memory",
        f"{_ZERO}.offload_optimizer.pin_memory",
        convert=lambda _: None,
        kind=BOOLEAN,
        note="DeepSpeed reads it no longer",
    ),
    Alias(
        f"{_ZERO}.stage3_gather_fp16_weights_on_model_save",
        f"{_ZERO}.stage3_gather_16bit_weights_on_model_save",
    ),
    *(
        Alias(f"{_ZERO}.{name}", f"{_ZERO}.stage3_{name}", deprecated=False)
        for name in (
            "prefetch_bucket_size",
            "param_persistence_threshold",
            "model_persistence_threshold",
            "max_live_parameters",
            "max_reuse_distance",
            "module_granularity_threshold",
            "use_all_reduce_for_fetch_params",
            "allgather_sequential",
            "gather_16bit_weights_on_model_save",
        )
    ),
    *(
        Alias(
            f"aio.{name}",
            "aio.intra_op_parallelism",
            note="DeepSpeed's disk tuner prints this name, and DeepSpeed itself ignores it",
            yields=True,
        )
        for name in ("thread_count", "num_threads")
    ),
    Alias(
        "tensor_parallel.kernel_inject",
        "tensor_parallel.replace_with_kernel_inject",
        deprecated=False,
    ),
)
