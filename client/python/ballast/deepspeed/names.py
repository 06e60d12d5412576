"""Names of DeepSpeed that are not here, and what to use in their place.

Comes from: ballast.deepspeed. Thread safety: pure functions.
"""

from __future__ import annotations

_SNAPSHOT = "engine.optimizer.snapshot(name) keeps a state on the servers"
_WHOLE = "each trainer has the whole model; leave it out"

# Names of the module `deepspeed`.
_MODULE = {
    "zero": "each trainer has the whole model: make it without deepspeed.zero.Init",
    "pipe": _WHOLE,
    "PipelineModule": _WHOLE,
    "moe": _WHOLE,
    "runtime": "there is no such package; use what initialize() returns",
    "monitor": "use ballast.monitor",
    "init_inference": "call the model itself",
    "tp_model_init": _WHOLE,
    "get_accelerator": "use torch",
    "DeepSpeedConfig": "ballast.ds_config.check(file) reads and judges a ds_config",
    "__version__": "use ballast.__version__",
    "accelerator": "use torch",
    "OnDevice": "use torch.device as a context",
}

_STATE = "engine.optimizer.export_state() gives fp32 masters and moments"
# Names of deepspeed.utils.
_UTILS = {
    "logger": "use Python's logging",
    "log_dist": "use Python's logging",
    "groups": "each trainer has the whole model; use torch.distributed",
    "RepeatingLoader": "use itertools.cycle(loader), or a loop over epochs",
    "zero_to_fp32": "use ballast-zero-to-fp32",
    "safe_get_full_grad": "use parameter.grad before engine.step()",
}

# Names of DeepSpeed's engine.
_ENGINE = {
    "store_checkpoint": "the name is save_checkpoint",
    "save_fp16_model": "use save_16bit_model",
    "train_batch": _WHOLE,
    "eval_batch": _WHOLE,
    "allreduce_gradients": "step() averages over the trainers",
    "clip_fp32_gradients": "write gradient_clipping into the ds_config",
    "save_checkpoint_terminate": _SNAPSHOT,
    "set_train_micro_batch_size": "make another engine, or set_train_batch_size()",
    "config": "use what you gave to initialize()",
    "gradient_clipping": "use gradient_clipping of the ds_config",
    "fp16_enabled": "use fp16.enabled of the ds_config",
    "bfloat16_enabled": "use bf16.enabled of the ds_config",
    "steps_per_print": "use steps_per_print of the ds_config",
    "get_global_steps": "use engine.global_steps",
    "dp_world_size": "use ballast.deepspeed.comm.get_world_size()",
    "deepspeed_io": "pass training_data to initialize(), or make a DataLoader",
    "set_lr": "set lr in engine.optimizer.param_groups",
    "compile": "call torch.compile on the model before initialize()",
}


def module_advice(name: str) -> str:
    """The text of an AttributeError for a name of the module."""
    return _text("ballast.deepspeed", name, _MODULE.get(name))


def comm_advice(name: str) -> str:
    """The text of an AttributeError for a name of deepspeed.comm."""
    return _text(
        "ballast.deepspeed.comm", name, "call init_distributed(), then use torch.distributed"
    )


def utils_advice(name: str) -> str:
    """The text of an AttributeError for a name of deepspeed.utils."""
    return _text("ballast.deepspeed.utils", name, _UTILS.get(name, _STATE))


def engine_advice(name: str) -> str:
    """The text of an AttributeError for a name of the engine."""
    return _text("the engine of ballast.deepspeed, or its module,", name, _ENGINE.get(name))


def _text(owner: str, name: str, instead: str | None) -> str:
    return f"{owner} has no {name!r}" + (f": {instead}" if instead else "")
