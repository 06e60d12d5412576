"""Rows of zero_optimization and aio: where state lives and how it travels.

Comes from: DeepSpeed's configuration (runtime/zero/config.py, offload_config.py, aio_config.py of
0.19.8). Goes to: ballast.ds_config.table.
"""

from __future__ import annotations

import sys

from ballast.ds_config import filling
from ballast.ds_config.kinds import (
    ANY_INTEGER,
    BOOLEAN,
    COUNT,
    INTEGER_OR_AUTO,
    OBJECT,
    POSITIVE,
    SHARE,
    TEXT,
    TEXTS,
    Boolean,
    Choice,
    Integer,
    Number,
)
from ballast.ds_config.row import (
    Moved,
    Row,
    above,
    below,
    equal,
    no_effect,
    parts,
    present,
    refused,
    sdk,
    service,
    switch,
    under,
)

_STAGE_3 = no_effect("is read only in stage 3, whose verdict counts")
_WIRE = no_effect("weights and gradients travel in chunks of 1 MiB; this is elements, not bytes")
_TRAINER_HAS_NONE = no_effect("the trainers hold no optimizer state, so there is nothing to move")
_DEVICE = Choice(("none", "cpu", "nvme"))

_STATE = (
    Row(
        "stage",
        Integer(0, 3),
        0,
        service("the optimizer state is partitioned over the servers; gradients are summed there"),
        (
            equal(0, no_effect("the state lives on the servers in any stage")),
            equal(3, service("weights are partitioned as well", needs="stage3")),
        ),
    ),
    Row("reduce_bucket_size", POSITIVE, 500_000_000, _WIRE, filling=filling.REDUCE_BUCKET),
    Row("allgather_bucket_size", COUNT, 500_000_000, _WIRE),
    Row(
        "overlap_comm",
        BOOLEAN,
        None,
        no_effect("gradients are pushed in opt.step(); weights stream back as they are stepped"),
    ),
    Row(
        "contiguous_gradients",
        BOOLEAN,
        True,
        no_effect("gradients are sent from where they lie: no copy is made, nothing fragments"),
    ),
    Row("reduce_scatter", BOOLEAN, True, no_effect("each server receives its own part only")),
    Row("allgather_partitions", BOOLEAN, True, no_effect("each trainer pulls whole weights")),
    Row(
        "use_multi_rank_bucket_allreduce",
        BOOLEAN,
        True,
        no_effect("there is no all-reduce between the trainers"),
    ),
    Row(
        "round_robin_gradients",
        BOOLEAN,
        False,
        no_effect("gradients go to the servers, not to the host memory of the trainers"),
    ),
    Row(
        "ignore_unused_parameters",
        BOOLEAN,
        True,
        service("a parameter without a gradient on any trainer is left as it is"),
        (
            equal(
                False,
                refused(
                    "Ballast raises no error for unused parameters",
                    "leave it true, and check p.grad in the script",
                ),
            ),
        ),
    ),
    Row("legacy_stage1", BOOLEAN, False, no_effect("chooses among DeepSpeed's implementations")),
    Row(
        "parameter_alignment",
        BOOLEAN,
        False,
        no_effect("the servers cut tensors into tiles of their own"),
        since="0.19.8",
    ),
    Row(
        "compute_grad_norm",
        BOOLEAN,
        True,
        service("opt.grad_norm, in every round"),
        (equal(False, no_effect("the norm costs no extra pass; opt.grad_norm is always there")),),
        since="0.19.8",
    ),
    Row(
        "enable_sanity_checks",
        BOOLEAN,
        False,
        no_effect("frames and files are checked by CRC with either value"),
    ),
    Row(
        "load_from_fp32_weights",
        BOOLEAN,
        True,
        no_effect("snapshots and exports with state hold fp32 masters"),
    ),
    switch(
        "elastic_checkpoint",
        refused(
            "DeepSpeed has dropped it",
            "take snapshots: they restore on any number of servers and trainers",
        ),
    ),
    Row(
        "sub_group_size",
        COUNT,
        1_000_000_000,
        no_effect("is read in stage 3 only; the servers step in tiles (tile_elements)"),
    ),
    Row("override_module_apply", BOOLEAN, True, _STAGE_3),
    Row("memory_efficient_linear", BOOLEAN, True, _STAGE_3),
    Row("pipeline_loading_checkpoint", BOOLEAN, False, _STAGE_3),
    Row("log_trace_cache_warnings", BOOLEAN, False, _STAGE_3),
    Row("save_muon_momentum_buffer_in_memory", BOOLEAN, False, _STAGE_3),
)

_OFFLOAD_OPTIMIZER = under(
    "offload_optimizer",
    Row(
        "device",
        _DEVICE,
        "none",
        no_effect("the state lives on the servers, in their memory if it fits"),
        (
            equal("cpu", service('bt.AdamW(device="cpu"): in the memory of the servers')),
            equal(
                "nvme",
                service(
                    'bt.AdamW(device="nvme"): on the disks of the servers; needs durability, '
                    "see docs/nvme.md"
                ),
            ),
        ),
    ),
    Row(
        "nvme_path",
        TEXT,
        None,
        no_effect("a trainer names no path of a server; set storage.data_dir there"),
    ),
    Row("buffer_count", COUNT, 4, no_effect("the servers size their buffers themselves")),
    Row("pin_memory", BOOLEAN, Moved((("", False), ("0.19.5", True))), _TRAINER_HAS_NONE),
    Row("pipeline_read", BOOLEAN, False, no_effect("the servers always read ahead")),
    Row("pipeline_write", BOOLEAN, False, no_effect("the servers always write in the background")),
    Row("fast_init", BOOLEAN, False, no_effect("the servers initialize the state themselves")),
    Row(
        "ratio",
        SHARE,
        1.0,
        no_effect("1: all of the state leaves the trainers"),
        (
            below(
                1.0,
                refused(
                    "no part of the state stays on the trainers",
                    "write 1.0, or leave the key out",
                ),
            ),
        ),
    ),
    Row("super_offload", BOOLEAN, False, _STAGE_3),
    Row("cpuadam_cores_perc", SHARE, 0.8, _STAGE_3),
)

_PARAM_OFFLOAD = service(
    "weights leave the trainers",
    needs="stage3",
    instead="leave offload_param out: the optimizer state leaves the trainers, the weights stay",
)

_OFFLOAD_PARAM = (
    Row(
        "offload_param.device",
        _DEVICE,
        "none",
        no_effect("the weights stay on the trainers"),
        (equal("cpu", _PARAM_OFFLOAD), equal("nvme", _PARAM_OFFLOAD)),
    ),
    *parts(
        "offload_param",
        "device",
        ("nvme_path", TEXT, None),
        ("buffer_count", COUNT, 5),
        ("buffer_size", COUNT, 100_000_000),
        ("pin_memory", BOOLEAN, Moved((("", False), ("0.19.5", True)))),
    ),
    Row(
        "offload_param.max_in_cpu",
        COUNT,
        1_000_000_000,
        no_effect("is read only with offload_param.device nvme; it counts elements"),
    ),
)

_LEAF_CLASSES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)
_STAGE3_ROWS = (
    Row(
        "stage3_prefetch_bucket_size",
        COUNT,
        50_000_000,
        _STAGE_3,
        filling=filling.PREFETCH_BUCKET,
    ),
    Row(
        "stage3_param_persistence_threshold",
        COUNT,
        100_000,
        _STAGE_3,
        filling=filling.PERSISTENCE,
    ),
    Row("stage3_model_persistence_threshold", COUNT, sys.maxsize, _STAGE_3),
    Row("stage3_max_live_parameters", COUNT, 1_000_000_000, _STAGE_3),
    Row("stage3_max_reuse_distance", COUNT, 1_000_000_000, _STAGE_3),
    Row("stage3_module_granularity_threshold", ANY_INTEGER, 0, _STAGE_3),
    Row("stage3_use_all_reduce_for_fetch_params", BOOLEAN, False, _STAGE_3),
    Row("stage3_allgather_sequential", BOOLEAN, False, _STAGE_3),
    Row(
        "stage3_gather_16bit_weights_on_model_save",
        BOOLEAN,
        False,
        sdk("each trainer holds whole weights: torch.save(model.state_dict()) has them all"),
    ),
    Row("leaf_module.classes", TEXTS, _LEAF_CLASSES, _STAGE_3),
    Row("leaf_module.names", TEXTS, (), _STAGE_3),
    Row("leaf_module.name_suffixes", TEXTS, (), _STAGE_3),
)

_QUANTIZED = service("8-bit transfer", needs="quantized_transfer")
_MICS = refused(
    "Ballast does not shard within groups of trainers, and DeepSpeed has dropped it",
    "leave it out: the servers hold the state once, for all trainers",
)

_ZEROPP = (
    Row(
        "zero_hpz_partition_size",
        COUNT,
        1,
        no_effect("1: no second partition"),
        (
            above(
                1,
                refused(
                    "Ballast has no second partition of weights",
                    "write 1: trainers hold whole weights",
                ),
            ),
        ),
    ),
    switch("zero_quantized_weights", _QUANTIZED),
    switch("zero_quantized_gradients", _QUANTIZED),
    switch("zero_quantized_nontrainable_weights", _QUANTIZED),
    Row(
        "zeropp_loco_param",
        OBJECT,
        None,
        no_effect("not set"),
        (present(_QUANTIZED),),
        until="0.19.8",
    ),
    Row(
        "mics_shard_size",
        ANY_INTEGER,
        -1,
        no_effect("-1: off"),
        (above(0, _MICS),),
        until="0.19.7",
    ),
    switch("mics_hierarchical_params_gather", _MICS, until="0.19.7"),
)

_ZENFLOW = (
    Row(
        "zenflow",
        OBJECT,
        None,
        no_effect("not set"),
        (
            present(
                refused(
                    "all gradients of a round are applied in that round", "leave the section out"
                )
            ),
        ),
    ),
    *parts(
        "zenflow",
        "",
        ("topk_ratio", Number(0.0, 1.0, open_low=True, open_high=True), 0.1),
        ("select_strategy", Choice(("auto", "step", "epoch")), "auto"),
        ("select_interval", INTEGER_OR_AUTO, "auto"),
        ("update_interval", INTEGER_OR_AUTO, "auto"),
        ("overlap_step", BOOLEAN, False),
        ("offload", BOOLEAN, False),
        ("auto_ratio", SHARE, 0.99),
        ("full_warm_up_rounds", COUNT, 0),
        ("pt_reserved_cores_perc", SHARE, 0.5),
        ("steps_per_epoch", POSITIVE, None),
    ),
)

_AIO_TEXT = no_effect(
    "NVMe belongs to the servers: set aio there; `ballastctl tune nvme --aio FILE` measures this "
    "section and prints theirs. aio_handle of ballast.ops takes such values as arguments"
)
_FLAG = Boolean(texts=True)
_AIO = under(
    "aio",
    Row("block_size", POSITIVE, 1 << 20, _AIO_TEXT),
    Row("queue_depth", POSITIVE, 8, _AIO_TEXT),
    Row("intra_op_parallelism", POSITIVE, 1, _AIO_TEXT),
    Row("single_submit", _FLAG, False, _AIO_TEXT),
    Row("overlap_events", _FLAG, True, _AIO_TEXT),
    Row(
        "use_gds",
        _FLAG,
        False,
        no_effect("off, as without the key"),
        (
            equal(
                True,
                refused(
                    "the state does not pass through a GPU", "write false: the servers' own disks"
                ),
            ),
        ),
    ),
)

ROWS = (
    *under(
        "zero_optimization",
        *_STATE,
        *_OFFLOAD_OPTIMIZER,
        *_OFFLOAD_PARAM,
        *_STAGE3_ROWS,
        *_ZEROPP,
        *_ZENFLOW,
    ),
    *_AIO,
)
