"""The table of all known keys of a ds_config. To add a key, add its row to the file of its section.

Comes from: the files of this folder. Goes to: ballast.ds_config.check and ballast.ds_config.page.
"""

from __future__ import annotations

from ballast.ds_config.row import Row
from ballast.ds_config.table import (
    features,
    observation,
    optimizers,
    removed,
    schedulers,
    training,
    zero,
)
from ballast.ds_config.table.aliases import ALIASES, LEGACY_STAGE, SECTIONS

# Rows whose verdict does not depend on the type of optimizer or scheduler.
ROWS: tuple[Row, ...] = (
    *training.ROWS,
    *optimizers.OTHERS,
    *schedulers.OTHERS,
    *zero.ROWS,
    *observation.ROWS,
    *features.ROWS,
    *removed.ROWS,
)
OPTIMIZERS = optimizers.VARIANTS
SCHEDULERS = schedulers.VARIANTS
UNKNOWN_OPTIMIZER = optimizers.UNKNOWN_TYPE
UNKNOWN_SCHEDULER = schedulers.UNKNOWN_TYPE

# Sections in which DeepSpeed itself reads "auto" as the default. Elsewhere it breaks on the text.
AUTO_IS_DEFAULT = (
    "zero_optimization",
    "fp16",
    "bf16",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "comet",
    "comms_logger",
    "hybrid_engine",
    "compile",
    "timers",
    "tensor_parallel",
    "weight_quantization",
)

# Keys that guides print in the wrong place, and what to write.
HINTS = {
    **{
        variant.name: f'write "scheduler": {{"type": "{variant.name}", "params": {{...}}}}'
        for variant in SCHEDULERS
    },
    "zero_optimization.min_num_size": "delete it: no version of DeepSpeed reads it",
    "fp16.opt_level": "delete it: it belongs to amp (Apex), which Ballast does not use",
    "allgather_size": "write zero_optimization.allgather_bucket_size",
}

__all__ = [
    "ALIASES",
    "AUTO_IS_DEFAULT",
    "HINTS",
    "LEGACY_STAGE",
    "OPTIMIZERS",
    "ROWS",
    "SCHEDULERS",
    "SECTIONS",
    "UNKNOWN_OPTIMIZER",
    "UNKNOWN_SCHEDULER",
]
