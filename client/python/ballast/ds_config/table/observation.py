"""Rows for a job's printing, logging and measurements, and for checkpoints.

Comes from: DeepSpeed's configuration (monitor, comm, profiling, model_checkpointing of 0.19.8).
Goes to: ballast.ds_config.table.
"""

from __future__ import annotations

from typing import Any

from ballast.ds_config.kinds import (
    ANY_INTEGER,
    BOOLEAN,
    COUNT,
    NUMBER,
    POSITIVE,
    TEXT,
    Choice,
    Either,
    Infinity,
    Kind,
    Listing,
)
from ballast.ds_config.row import (
    Row,
    alongside,
    equal,
    no_effect,
    parts,
    refused,
    sdk,
    switch,
    under,
)

_REPORT = "nothing is printed; opt.last_report has norm, scale and times of each round"

_PRINTS = (
    Row(
        "steps_per_print",
        Either((POSITIVE, Infinity())),
        None,
        sdk("ballast.deepspeed prints step, skipped, lr and mom after so many rounds, on rank 0"),
    ),
    switch(
        "wall_clock_breakdown",
        sdk("ballast.deepspeed prints the times of forward, backward and step, and the phases of "
            "the servers, on rank 0, and gives them to monitors"),
    ),
    Row(
        "memory_breakdown",
        BOOLEAN,
        False,
        no_effect("the trainers hold no optimizer state; /metrics has the servers' memory"),
    ),
    Row(
        "dump_state",
        BOOLEAN,
        False,
        no_effect("`python -m ballast.ds_config FILE --all` prints the effective values"),
    ),
    Row("log_level", TEXT, None, no_effect("the SDK writes to stderr only what it waits for")),
    switch(
        "disable_python_gc",
        alongside("call gc.disable() in the script", "gc.disable"),
        since="0.19.8",
    ),
    Row("timers.throughput.enabled", BOOLEAN, True, no_effect(_REPORT)),
    Row("timers.throughput.synchronized", BOOLEAN, True, no_effect(_REPORT)),
)

_MONITOR = sdk(
    "ballast.deepspeed writes Train/Samples/* of each round; ballast.monitor for other loops",
    needs="monitors",
)


def _monitor(section: str, *keys: tuple[str, Kind, Any]) -> tuple[Row, ...]:
    return (
        switch(f"{section}.enabled", _MONITOR),
        *parts(section, "enabled", *keys),
    )


_FILES = (("output_path", TEXT, ""), ("job_name", TEXT, "DeepSpeedJobName"))

_MONITORS = (
    *_monitor("tensorboard", *_FILES),
    *_monitor("csv_monitor", *_FILES),
    *_monitor(
        "wandb", ("group", TEXT, None), ("team", TEXT, None), ("project", TEXT, "deepspeed")
    ),
    *_monitor(
        "comet",
        ("samples_log_interval", POSITIVE, 100),
        ("project", TEXT, None),
        ("workspace", TEXT, None),
        ("api_key", TEXT, None),
        ("experiment_name", TEXT, None),
        ("experiment_key", TEXT, None),
        ("online", BOOLEAN, None),
        ("mode", Choice(("get", "create", "get_or_create")), None),
    ),
)

_PROFILES = (
    switch(
        "comms_logger.enabled",
        sdk("ballast.deepspeed counts the pushes and pulls of each round; comm.log_summary() "
            "prints sizes, times and bandwidths", needs="comms_logger"),
    ),
    *parts(
        "comms_logger",
        "enabled",
        ("prof_all", BOOLEAN, True),
        ("prof_ops", Listing(TEXT), ()),
        ("verbose", BOOLEAN, False),
        ("debug", BOOLEAN, False),
    ),
    switch(
        "flops_profiler.enabled",
        alongside(
            "count the model's operations in the script", "torch.utils.flop_counter.FlopCounterMode"
        ),
    ),
    *parts(
        "flops_profiler",
        "enabled",
        ("recompute_fwd_factor", NUMBER, 0.0),
        ("profile_step", COUNT, 1),
        ("module_depth", ANY_INTEGER, -1),
        ("top_modules", COUNT, 1),
        ("detailed", BOOLEAN, True),
        ("output_file", TEXT, None),
    ),
)

_CHECKPOINT_WRITER = no_effect(
    "the servers write snapshots; opt.snapshot() and `ballastctl snapshot create`"
)
_CHECKPOINT = under(
    "checkpoint",
    Row(
        "tag_validation",
        Choice(("Warn", "Ignore", "Fail"), fold=True),
        "Warn",
        no_effect("all trainers share one snapshot, taken in one round, so its tag cannot differ"),
    ),
    switch(
        "load_universal",
        sdk("load_checkpoint() of ballast.deepspeed reads a universal checkpoint",
            needs="universal_checkpoint"),
    ),
    Row("use_node_local_storage", BOOLEAN, False, _CHECKPOINT_WRITER),
    Row("checkpoint_serialization", BOOLEAN, True, _CHECKPOINT_WRITER),
    Row("parallel_write.pipeline_stage", BOOLEAN, False, _CHECKPOINT_WRITER),
    Row("writer.type", Choice(("mock", "python", "fast"), fold=True), "fast", _CHECKPOINT_WRITER),
    Row("writer.io_buffer_size", POSITIVE, 64 << 20, _CHECKPOINT_WRITER),
    Row("writer.io_buffer_double", BOOLEAN, True, _CHECKPOINT_WRITER),
    Row("writer.io_multiplier", POSITIVE, 1, _CHECKPOINT_WRITER),
    Row("writer.show_statistics", BOOLEAN, False, _CHECKPOINT_WRITER),
    Row(
        "writer.data_parallel",
        Choice(("replica", "socket", "machine"), fold=True),
        None,
        _CHECKPOINT_WRITER,
    ),
    Row("writer.decoupled", BOOLEAN, False, _CHECKPOINT_WRITER),
)

_AWAY = "checkpoints are the servers' snapshots, which survive the trainers"
_OTHER_CHECKPOINTS = (
    switch(
        "nebula.enabled", refused(_AWAY, "leave it false and take opt.snapshot()"), until="0.19.7"
    ),
    *parts(
        "nebula",
        "enabled",
        ("enable_nebula_load", BOOLEAN, True),
        ("nebula_load_path", TEXT, None),
        ("persistent_storage_path", TEXT, None),
        ("persistent_time_interval", COUNT, 100),
        ("num_of_version_in_retention", COUNT, 2),
        until="0.19.7",
    ),
)

ROWS = (*_PRINTS, *_MONITORS, *_PROFILES, *_CHECKPOINT, *_OTHER_CHECKPOINTS)
