"""Rows of scheduler: its type, and the params of each type.

Comes from: DeepSpeed's configuration (runtime/lr_schedules.py of 0.19.8). Goes to:
ballast.ds_config.table.
"""

from __future__ import annotations

from ballast.ds_config import filling
from ballast.ds_config.kinds import (
    ANY_INTEGER,
    BOOLEAN,
    COUNT,
    LR_PER_GROUP,
    NUMBER,
    NUMBER_PER_GROUP,
    OBJECT,
    POSITIVE,
    TEXT,
    Choice,
)
from ballast.ds_config.row import (
    REQUIRED,
    Moved,
    Row,
    Variant,
    no_effect,
    refused,
    service,
    under,
)

_PART = no_effect("belongs to scheduler.type, whose verdict counts")

OTHERS = (
    Row(
        "scheduler.type",
        TEXT,
        None,
        no_effect("not set: the rate stays, or a torch scheduler of the script drives it"),
    ),
    Row("scheduler.params", OBJECT, None, _PART),
)

_TYPE_ROW = Row("warmup_type", Choice(("log", "linear")), "log", _PART)
_WARMUP_STEPS = Row("warmup_num_steps", POSITIVE, 1000, _PART, filling=filling.WARMUP)
_TOTAL = Row("total_num_steps", POSITIVE, REQUIRED, _PART, filling=filling.TOTAL)
_MIN_LR = Row("warmup_min_lr", LR_PER_GROUP, 0.0, _PART, filling=filling.MIN_LR)


def _max_lr(default: object) -> Row:
    return Row("warmup_max_lr", LR_PER_GROUP, default, _PART, filling=filling.LR)


_LAST = Row("last_batch_iteration", ANY_INTEGER, -1, _PART)

_VARIANTS = (
    (
        "WarmupLR",
        (_MIN_LR, _max_lr(Moved((("", 0.001), ("0.17.2", None)))), _WARMUP_STEPS, _TYPE_ROW),
    ),
    ("WarmupDecayLR", (_TOTAL, _MIN_LR, _max_lr(0.001), _WARMUP_STEPS, _TYPE_ROW)),
    (
        "WarmupCosineLR",
        (
            _TOTAL,
            Row("warmup_min_ratio", NUMBER, 0.0, _PART),
            Row("cos_min_ratio", NUMBER, 0.0001, _PART),
            _WARMUP_STEPS,
            _TYPE_ROW,
        ),
    ),
    (
        "LRRangeTest",
        (
            Row("lr_range_test_min_lr", LR_PER_GROUP, 0.001, _PART),
            Row("lr_range_test_step_size", POSITIVE, 2000, _PART),
            Row("lr_range_test_step_rate", NUMBER, 1.0, _PART),
            Row("lr_range_test_staircase", BOOLEAN, False, _PART),
        ),
    ),
    (
        "OneCycle",
        (
            Row("cycle_min_lr", LR_PER_GROUP, REQUIRED, _PART),
            Row("cycle_max_lr", LR_PER_GROUP, REQUIRED, _PART),
            Row("decay_lr_rate", NUMBER, 0.0, _PART),
            Row("cycle_first_step_size", POSITIVE, 2000, _PART),
            Row("cycle_second_step_size", COUNT, None, _PART),
            Row("cycle_first_stair_count", COUNT, 0, _PART),
            Row("cycle_second_stair_count", COUNT, None, _PART),
            Row("decay_step_size", COUNT, 0, _PART),
            Row("cycle_momentum", BOOLEAN, True, _PART),
            Row("cycle_min_mom", NUMBER_PER_GROUP, 0.8, _PART),
            Row("cycle_max_mom", NUMBER_PER_GROUP, 0.9, _PART),
            Row("decay_mom_rate", NUMBER, 0.0, _PART),
        ),
    ),
)

VARIANTS = tuple(
    Variant(
        name,
        service(
            f"bt.AdamW(lr_schedule=ballast.schedules.{name}(...)), with DeepSpeed's arguments",
            needs="schedules",
        ),
        under("scheduler.params", *rows, _LAST),
    )
    for name, rows in _VARIANTS
)
UNKNOWN_TYPE = refused(
    "no schedule has this name",
    "leave the section out and use a scheduler of torch.optim.lr_scheduler in the script",
)
