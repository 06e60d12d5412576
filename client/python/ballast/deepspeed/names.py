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
    "utils": "engine.optimizer.export_state() gives fp32 masters and moments",
    "monitor": "use ballast.monitor",
    "init_inference": "call the model itself",
    "tp_model_init": _WHOLE,
    "get_accelerator": "use torch",
    "accelerator": "use torch",
    "OnDevice": "use torch.device as a context",
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
    "set_lr": "set lr in engine.optimizer.param_groups",
    "compile": "call torch.compile on the model before initialize()",
}


def module_advice(name: str) -> str:
    """The text of an AttributeError for a name of the module."""
    return _text("ballast.deepspeed", name, _MODULE.get(name))


def engine_advice(name: str) -> str:
    """The text of an AttributeError for a name of the engine."""
    return _text("the engine of ballast.deepspeed, or its module,", name, _ENGINE.get(name))


def _text(owner: str, name: str, instead: str | None) -> str:
    return f"{owner} has no {name!r}" + (f": {instead}" if instead else "")
