"""Rows for features of the model, the data or the cluster's shape; most are refused when on.

Comes from: DeepSpeed's configuration (0.19.8, and 0.19.6 for keys dropped since). Goes to:
ballast.ds_config.table.
"""

from __future__ import annotations

from ballast.ds_config.kinds import (
    BOOLEAN,
    COUNT,
    FULL_TEXT,
    NUMBER,
    OBJECT,
    POSITIVE,
    TEXT,
    Choice,
    Either,
    Listing,
)
from ballast.ds_config.row import (
    Row,
    above,
    alongside,
    equal,
    no_effect,
    parts,
    present,
    refused,
    switch,
    under,
)

_TORCH_CHECKPOINT = alongside(
    "the script recomputes activations", "torch.utils.checkpoint.checkpoint"
)
_OFF = no_effect("off, as without the key")

_ACTIVATIONS = under(
    "activation_checkpointing",
    *(
        switch(name, _TORCH_CHECKPOINT)
        for name in (
            "partition_activations",
            "contiguous_memory_optimization",
            "cpu_checkpointing",
            "synchronize_checkpoint_boundary",
            "profile",
        )
    ),
    Row("number_checkpoints", COUNT, None, _OFF, (present(_TORCH_CHECKPOINT),)),
)

_WHOLE = "the trainers are equal: each has the whole model"
_ONE = "write 1, or leave it out"

_PARALLEL = (
    *(
        Row(
            name,
            POSITIVE,
            None,
            no_effect("1: no such parallelism"),
            (above(1, refused(_WHOLE, _ONE)),),
        )
        for name in ("sequence_parallel_size", "data_parallel_size")
    ),
    switch("use_data_before_expert_parallelism", refused(_WHOLE, "leave it false")),
    Row("tensor_parallel.autotp_size", COUNT, 0, _OFF, (above(1, refused(_WHOLE, _ONE)),)),
    Row(
        "tensor_parallel.dtype",
        TEXT,
        None,
        _OFF,
        (present(refused("DeepSpeed takes no text for it", "leave it out")),),
    ),
    *parts(
        "tensor_parallel",
        "autotp_size",
        ("tp_overlap_comm", BOOLEAN, False),
        ("tp.tp_size", POSITIVE, 1),
        ("tp.tp_grain_size", POSITIVE, 1),
        ("injection_policy_tuple", Listing(TEXT), None),
        ("partition_config", OBJECT, None),
        ("preset_model", TEXT, None),
        ("keep_module_on_host", BOOLEAN, False),
        ("replace_with_kernel_inject", BOOLEAN, False),
    ),
    *parts(
        "tensor_parallel",
        "autotp_size",
        ("vocab_parallel_lm_head", BOOLEAN, None),
        ("vocab_parallel_ce_backend", Choice(("torch", "liger")), "torch"),
        since="0.19.8",
    ),
    switch("expert_parallel.enabled", refused(_WHOLE, "leave it false; experts stay whole")),
    Row(
        "expert_parallel.load_balance_coeff",
        NUMBER,
        None,
        _OFF,
        (present(refused("DeepSpeed refuses it, too", "leave it out")),),
    ),
    *parts(
        "expert_parallel",
        "enabled",
        ("autoep_size", POSITIVE, 1),
        ("expert_tensor_parallel_size", POSITIVE, 1),
        ("preset_model", TEXT, None),
        ("moe_layer_pattern", TEXT, None),
        ("expert_pattern", TEXT, None),
        ("router_pattern", TEXT, None),
        ("expert_w1", TEXT, None),
        ("expert_w2", TEXT, None),
        ("expert_w3", TEXT, None),
        ("use_grouped_mm", BOOLEAN, True),
        ("route_norm", BOOLEAN, None),
        ("route_scale", NUMBER, 1.0),
        ("score_apply", Choice(("auto", "pre", "post")), "auto"),
        ("score_func", Choice(("auto", "softmax", "sigmoid")), "auto"),
        ("combine_impl", TEXT, "auto"),
        ("top_k", Either((POSITIVE, Choice(("auto",)))), "auto"),
        ("num_expert_groups", POSITIVE, None),
        ("num_limited_groups", POSITIVE, None),
        ("routed_scaling_factor", Either((NUMBER, Choice(("auto",)))), "auto"),
        ("num_experts_attr", TEXT, None),
        ("top_k_attr", TEXT, None),
        ("has_shared_experts", BOOLEAN, None),
        ("shared_experts_pattern", TEXT, None),
        ("shared_experts_gate_pattern", TEXT, None),
        ("expert_activation", TEXT, None),
    ),
    *parts(
        "expert_parallel",
        "enabled",
        ("validate_folding_routing", BOOLEAN, False),
        ("async_split_plan", BOOLEAN, False),
        ("disable_triton_grouped_mm", BOOLEAN, False),
        ("row_weighting_impl", Choice(("auto", "eager", "fused")), "auto"),
        ("gate_up_impl", Choice(("separate", "fused")), "separate"),
        ("comm_backend", Choice(("comm", "deepep")), "comm"),
        ("comm_num_sm", POSITIVE, 12),
        ("comm_qp_margin", COUNT, 4),
        ("comm_max_tokens_per_rank", COUNT, 0),
        since="0.19.8",
    ),
    Row(
        "pipeline",
        OBJECT,
        None,
        no_effect("not set"),
        (present(refused(_WHOLE, "leave the section out; stages of a model are not split")),),
    ),
    *parts(
        "pipeline",
        "",
        ("stages", Either((POSITIVE, Choice(("auto",)))), "auto"),
        ("partition", TEXT, "best"),
        ("seed_layers", BOOLEAN, False),
        ("activation_checkpoint_interval", COUNT, 0),
        ("pipe_partitioned", BOOLEAN, True),
        ("grad_partitioned", BOOLEAN, True),
    ),
)

_ELASTIC = refused(
    "Ballast does not choose the batch sizes",
    "write the batch sizes, and bt.AdamW(variable_world=True) for trainers that join and leave",
)
_TUNE = refused(
    "Ballast does not search for configurations",
    "write the values; `ballastctl tune nvme` measures the servers' disks",
)

_CLUSTER = (
    switch("elasticity.enabled", _ELASTIC, until="0.19.8"),
    *parts(
        "elasticity",
        "enabled",
        ("max_train_batch_size", POSITIVE, 2000),
        ("micro_batch_sizes", Listing(POSITIVE), (2, 4, 6)),
        ("min_gpus", POSITIVE, 1),
        ("max_gpus", POSITIVE, 10_000),
        ("num_gpus_per_node", POSITIVE, 1),
        ("model_parallel_size", POSITIVE, 1),
        ("min_time", COUNT, 0),
        ("prefer_larger_batch", BOOLEAN, True),
        ("ignore_non_elastic_batch_info", BOOLEAN, False),
        ("version", NUMBER, 0.2),
        until="0.19.8",
    ),
    switch("autotuning.enabled", _TUNE),
    *parts(
        "autotuning",
        "enabled",
        ("fast", BOOLEAN, True),
        ("results_dir", FULL_TEXT, "autotuning_results"),
        ("exps_dir", FULL_TEXT, "autotuning_exps"),
        ("overwrite", BOOLEAN, True),
        ("start_profile_step", COUNT, 3),
        ("end_profile_step", COUNT, 5),
        ("metric", TEXT, "throughput"),
        ("metric_path", TEXT, None),
        ("tuner_type", Choice(("gridsearch", "random", "model_based")), "gridsearch"),
        ("tuner_early_stopping", COUNT, 5),
        ("tuner_num_trials", COUNT, 50),
        ("arg_mappings", OBJECT, None),
        ("max_train_batch_size", POSITIVE, None),
        ("min_train_batch_size", POSITIVE, 1),
        ("max_train_micro_batch_size_per_gpu", POSITIVE, 1024),
        ("min_train_micro_batch_size_per_gpu", POSITIVE, 1),
        ("num_tuning_micro_batch_sizes", POSITIVE, 3),
        ("mp_size", POSITIVE, 1),
        ("model_info", OBJECT, None),
        ("model_info_path", TEXT, None),
    ),
)

_GRAPH = "the trainers run plain torch"
_COMPILE = refused(_GRAPH, "leave it false, and call torch.compile in the script")
_MODEL = (
    switch("compile.deepcompile", _COMPILE),
    *parts(
        "compile",
        "deepcompile",
        ("free_activation", BOOLEAN, False),
        ("free_activation_threshold", COUNT, 10 << 20),
        ("offload_activation", BOOLEAN, False),
        ("offload_activation_pin_memory", BOOLEAN, True),
        ("offload_opt_states", BOOLEAN, False),
        ("offload_parameters", BOOLEAN, False),
        ("double_buffer", BOOLEAN, True),
        ("symmetric_memory", BOOLEAN, False),
        ("debug_log", BOOLEAN, False),
        ("sync_before_reduce", BOOLEAN, False),
        ("sync_after_reduce", BOOLEAN, False),
        ("sync_before_allgather", BOOLEAN, False),
        ("sync_after_allgather", BOOLEAN, False),
        ("keep_int_input_tensors", BOOLEAN, True),
        ("keep_all_input_tensors", BOOLEAN, False),
        ("passes", Listing(Choice(("z1", "z3", "autosp", "autotp"))), None),
    ),
    *parts("compile", "deepcompile", ("autoep_non_moe", BOOLEAN, False), since="0.19.8"),
    switch(
        "hybrid_engine.enabled",
        refused(_GRAPH, "leave it false, and generate with the model itself"),
    ),
    *parts(
        "hybrid_engine",
        "enabled",
        ("max_out_tokens", POSITIVE, 512),
        ("inference_tp_size", POSITIVE, 1),
        ("release_inference_cache", BOOLEAN, False),
        ("pin_parameters", BOOLEAN, True),
        ("tp_gather_partition_size", POSITIVE, 8),
        ("enable_cuda_graph", BOOLEAN, False),
    ),
    Row(
        "weight_quantization",
        OBJECT,
        None,
        no_effect("not set"),
        (present(refused(_GRAPH, "leave the section out, and quantize the model in the script")),),
    ),
    *parts(
        "weight_quantization",
        "",
        ("enabled", BOOLEAN, True),
        ("num_bits", POSITIVE, 8),
        ("q_type", Choice(("asymmetric", "symmetric")), "symmetric"),
        ("q_groups", POSITIVE, 1),
        ("quantized_initialization", OBJECT, {}),
        ("post_init_quant", OBJECT, {}),
    ),
)

_DATA = refused(
    "the script feeds the model", "leave it false, and shape the data in the script's DataLoader"
)
_SNAPSHOT = refused(
    "checkpoints are the servers' snapshots, which survive the trainers",
    "leave the section out and take opt.snapshot()",
)
_PIPELINE = (
    switch("data_efficiency.enabled", _DATA),
    *parts(
        "data_efficiency",
        "enabled",
        ("seed", COUNT, 1234),
        ("data_sampling.enabled", BOOLEAN, False),
        ("data_sampling.num_epochs", COUNT, 1000),
        ("data_sampling.num_workers", COUNT, 0),
        ("data_sampling.pin_memory", BOOLEAN, False),
        ("data_sampling.curriculum_learning", OBJECT, None),
        ("data_sampling.dynamic_batching", OBJECT, None),
        ("data_routing.enabled", BOOLEAN, False),
        ("data_routing.random_ltd", OBJECT, None),
    ),
    Row("datastates_ckpt", OBJECT, None, no_effect("not set"), (present(_SNAPSHOT),)),
)

ROWS = (*_ACTIVATIONS, *_PARALLEL, *_CLUSTER, *_MODEL, *_PIPELINE)
