"""Names of DeepSpeed missing here, and their replacements.

Comes from: ballast.deepspeed. Thread safety: pure functions.
"""

from __future__ import annotations

_SNAPSHOT = "engine.optimizer.snapshot(name) keeps a state on the servers"
_WHOLE = "each trainer has the whole model; leave it out"

_ELSEWHERE = "docs/deepspeed.md has the names that are here"
_ZERO = "each trainer has the whole model: make it without deepspeed.zero.Init"
_STATE = "engine.optimizer.export_state() gives fp32 masters and moments"
_RATES = (
    "write the scheduler into the ds_config, or give lr_schedule=, such as "
    "ballast.schedules.WarmupLR(...), to an optimizer of ballast.torch"
)
_CHECK = "ballast.ds_config.check(file) reads and judges a ds_config"
_ITSELF = "call the model itself"
_VERSION = "use ballast.__version__"
_RESULT = "use what initialize() returns"
_FILES = "use ballast-zero-to-fp32, or ballast.ds_checkpoint"
_TORCH = "use torch"
_TYPES = "use the type of torch or typing"

# Names below `deepspeed`, and what to use. The longest that fits counts: "utils" is also for
# utils.nvtx.range_push.
_BELOW = {
    "Any": _TYPES,
    "Callable": _TYPES,
    "DeepSpeedConfig": _CHECK,
    "DeepSpeedDataLoader": "pass training_data to initialize(), or make a DataLoader",
    "DeepSpeedHybridEngine": _RESULT,
    "DeepSpeedInferenceConfig": _ITSELF,
    "DeepSpeedOptimizer": "use torch.optim.Optimizer, from which Ballast's optimizers derive",
    "DeepSpeedOptimizerCallable": _TYPES,
    "DeepSpeedSchedulerCallable": _TYPES,
    "DeepSpeedTransformerConfig": "use torch.nn.TransformerEncoderLayer",
    "DeepSpeedTransformerLayer": "use torch.nn.TransformerEncoderLayer",
    "Dict": _TYPES,
    "DualPipeVEngine": _WHOLE,
    "DualPipeVModule": _WHOLE,
    "HAS_TRITON": "ask for the package triton itself",
    "InferenceEngine": _ITSELF,
    "MUON_OPTIMIZER": "Muon is not here; ballast.torch.ApplyDelta takes updates that you compute",
    "OnDevice": "use torch.device as a context",
    "Optimizer": _TYPES,
    "Optional": _TYPES,
    "PipelineEngine": _WHOLE,
    "PipelineModule": _WHOLE,
    "TORCH_DISTRIBUTED_DEFAULT_PORT": "MASTER_PORT of the environment has the port",
    "Tuple": _TYPES,
    "Union": _TYPES,
    "accelerator": _TORCH,
    "autotuning": "nothing is tuned; write the batch sizes into the ds_config",
    "checkpoint": _FILES,
    "comm": "call init_distributed(), then use torch.distributed",
    "compat": "use Python and torch",
    "compile": "call torch.compile on the model before initialize()",
    "compression": "the model is trained as it is; use torch.ao",
    "constants": "write the value itself",
    "datastates": _SNAPSHOT,
    "default_inference_config": _ITSELF,
    "elasticity": "an optimizer of ballast.torch takes variable_world=True",
    "env_report": "use ballast-report",
    "git_branch": _VERSION,
    "git_hash": _VERSION,
    "git_version_info": _VERSION,
    "git_version_info_installed": _VERSION,
    "inference": _ITSELF,
    "init_inference": _ITSELF,
    "io": "use ballast.ops.aio",
    "launcher": "start with ballast-run",
    "linear": "use torch.nn.Linear",
    "load_ds_config": _CHECK,
    "merge_tp_model_init_into_config": _WHOLE,
    "model_implementations": _ITSELF,
    "module_inject": _ITSELF,
    "moe": _WHOLE,
    "monitor": "use ballast.monitor",
    "nvme": "use ballast-nvme-tune",
    "ops": "make an optimizer with ballast.torch, such as bt.AdamW",
    "ops.compile": "nothing is compiled when a script runs; leave it out",
    "ops.deepspeed4science": _TORCH,
    "ops.fp_quantizer": _TORCH,
    "ops.gds": "use ballast.ops.aio",
    "ops.op_builder": "AsyncIOBuilder is here; nothing is compiled when a script runs",
    "ops.pin_memory": "use tensor.pin_memory()",
    "ops.quantizer": _TORCH,
    "ops.random_ltd": _TORCH,
    "ops.transformer": "use torch.nn.functional.scaled_dot_product_attention",
    "ops.triton_ops": _TORCH,
    "pipe": _WHOLE,
    "pkg_version": "use packaging.version",
    "profiling": "use wall_clock_breakdown of the ds_config, or torch.profiler",
    "record_tp_model_init_args": _WHOLE,
    "replace_transformer_layer": _ITSELF,
    "resolve_per_head_muon_after_sharding": "Muon is not here",
    "runtime": _RESULT,
    "runtime.activation_checkpointing": "use ballast.deepspeed.checkpointing.checkpoint",
    "runtime.compiler": "call torch.compile on the model before initialize()",
    "runtime.config": _CHECK,
    "runtime.config_utils": _CHECK,
    "runtime.data_pipeline": "pass training_data to initialize(), or make a DataLoader",
    "runtime.dataloader": "pass training_data to initialize(), or make a DataLoader",
    "runtime.fp16": "write fp16 into the ds_config",
    "runtime.fp16.loss_scaler": "write fp16 into the ds_config, or use ballast.DynamicLossScale",
    "runtime.lr_schedules": _RATES,
    "runtime.pipe": _WHOLE,
    "runtime.sequence_parallel": _WHOLE,
    "runtime.tensor_parallel": _WHOLE,
    "runtime.utils": "clip with gradient_clipping of the ds_config; for the rest use torch",
    "runtime.zero": _ZERO,
    "sequence": _WHOLE,
    "set_autotp_mode": _WHOLE,
    "set_optimizer_flags": "Muon is not here",
    "tp_model_init": _WHOLE,
    "utils": _STATE,
    "utils.OnDevice": "use torch.device as a context",
    "utils.comms_logging": "write comms_logger into the ds_config",
    "utils.debug": "print what you look for",
    "utils.exceptions": "except ballast.errors.BallastError",
    "utils.get_caller_func": "use inspect.stack()",
    "utils.get_numactl_cmd": "use numactl before ballast-run",
    "utils.groups": "each trainer has the whole model; use torch.distributed",
    "utils.init_on_device": "use torch.device as a context",
    "utils.instrument_w_nvtx": "use torch.cuda.nvtx",
    "utils.log_dist_once": "use log_dist",
    "utils.logging": "use logger and log_dist",
    "utils.module_utils": "use operator.attrgetter",
    "utils.numa": "use numactl before ballast-run",
    "utils.nvtx": "use torch.cuda.nvtx",
    "utils.pin_memory": "use tensor.pin_memory()",
    "utils.recursive_getattr": "use operator.attrgetter",
    "utils.recursive_setattr": "use operator.attrgetter and setattr",
    "utils.safe_get_local_grad": "use parameter.grad before engine.step()",
    "utils.set_log_level_from_string": "use logger.setLevel",
    "utils.timer": "use time.perf_counter, or wall_clock_breakdown of the ds_config",
    "utils.torch": _TORCH,
    "utils.types": "use torch.nn.functional",
    "utils.zero_to_fp32": _FILES,
    "utils.zero_to_torch": _FILES,
    "version": _VERSION,
    "zero": _ZERO,
}

# Names of DeepSpeed's engine.
_ENGINE = {
    "store_checkpoint": "the name is save_checkpoint",
    "save_fp16_model": "use save_16bit_model",
    "offload_states": "the servers hold the optimizer state; leave it out",
    "reload_states": "the servers hold the optimizer state; leave it out",
    "train_batch": _WHOLE,
    "eval_batch": _WHOLE,
    "allreduce_gradients": "step() averages over the trainers",
    "clip_fp32_gradients": "write gradient_clipping into the ds_config",
    "save_checkpoint_terminate": _SNAPSHOT,
    "set_train_micro_batch_size": "make another engine, or set_train_batch_size()",
    "config": "use what you gave to initialize()",
    "dp_world_size": "use ballast.deepspeed.comm.get_world_size()",
    "deepspeed_io": "pass training_data to initialize(), or make a DataLoader",
    "set_lr": "set lr in engine.optimizer.param_groups",
}


def advice(name: str) -> str:
    """The text of an error for a name below `deepspeed`, such as "runtime.zero.Init"."""
    owner, _, last = f"ballast.deepspeed.{name}".rpartition(".")
    while name and name not in _BELOW:
        name = name.rpartition(".")[0]
    return _text(owner, last, _BELOW.get(name, _ELSEWHERE))


def engine_advice(name: str) -> str:
    """The text of an AttributeError for a name of the engine."""
    return _text("the engine of ballast.deepspeed, or its module,", name, _ENGINE.get(name))


def _text(owner: str, name: str, instead: str | None) -> str:
    return f"{owner} has no {name!r}" + (f": {instead}" if instead else "")
