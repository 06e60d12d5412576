"""Names of DeepSpeed that scripts import and seldom use: their use raises, their import does not.

Comes from: ballast.deepspeed.submodules. Thread safety: nothing here is shared.

Many scripts import stage 3, pipelines or experts at their top, for a path that another option
takes. Each such name is a class without objects: isinstance() is False, and a call, a subclass'
object or an attribute raises with what to use.
"""

from __future__ import annotations

import abc
import functools
from typing import Any

from ballast.deepspeed.names import advice
from ballast.errors import Unsupported, at_border

_PIPES = "LayerSpec PipelineModule TiedLayerSpec"
_FLOPS = "FlopsProfiler get_model_profile"
_CHECKPOINTS = (
    "convert_zero_checkpoint_to_fp32_state_dict get_fp32_state_dict_from_zero_checkpoint "
    "load_state_dict_from_zero_checkpoint"
)
_PARTS = (
    "safe_get_local_fp32_param safe_get_local_grad safe_get_local_optimizer_state "
    "safe_set_full_fp32_param safe_set_full_optimizer_state safe_set_local_fp32_param "
    "safe_set_local_grad safe_set_local_optimizer_state"
)
_MEMORY = "estimate_zero{0}_model_states_mem_needs_all_{1} estimate_zero{0}_model_states_mem_needs"

# By module, below `deepspeed`; "" is deepspeed itself. Each name is one of DeepSpeed 0.19.8.
REFUSED: dict[str, str] = {
    "": "DeepSpeedConfig DeepSpeedHybridEngine DeepSpeedInferenceConfig DeepSpeedTransformerConfig "
        "DeepSpeedTransformerLayer DualPipeVEngine DualPipeVModule InferenceEngine OnDevice "
        "PipelineEngine PipelineModule init_inference replace_transformer_layer tp_model_init "
        "DeepSpeedDataLoader DeepSpeedOptimizer",
    "checkpoint": "DeepSpeedCheckpoint",
    "inference": "",
    "inference.config": "DeepSpeedInferenceConfig",
    "inference.engine": "InferenceEngine",
    "linear": "LoRAConfig OptimizedLinear QuantizationConfig",
    "module_inject": "replace_transformer_layer set_autotp_mode",
    "moe": "",
    "moe.experts": "Experts",
    "moe.layer": "MoE",
    "moe.mappings": "drop_tokens gather_tokens",
    "moe.sharded_moe": "MOELayer TopKGate",
    "moe.utils": "configure_moe_param_groups split_params_grads_into_shared_and_expert_params "
                 "split_params_into_shared_and_expert_params",
    "monitor": "",
    "monitor.monitor": "MonitorMaster",
    "ops.adam": "ZenFlowCPUAdam ZenFlowSelectiveAdamW ZenFlowSelectiveAdamW_stage3",
    "ops.op_builder.builder": "CUDAOpBuilder OpBuilder",
    "ops.transformer": "DeepSpeedTransformerConfig DeepSpeedTransformerLayer",
    "pipe": _PIPES,
    "profiling": "",
    "profiling.flops_profiler": _FLOPS,
    "profiling.flops_profiler.profiler": _FLOPS,
    "runtime.bf16_optimizer": "BF16_Optimizer",
    "runtime.config": "DeepSpeedConfig",
    "runtime.data_pipeline": "",
    "runtime.data_pipeline.data_routing": "",
    "runtime.data_pipeline.data_routing.helper": "convert_to_random_ltd save_without_random_ltd",
    "runtime.data_pipeline.data_sampling": "",
    "runtime.data_pipeline.data_sampling.data_analyzer": "DataAnalyzer DistributedDataAnalyzer",
    "runtime.data_pipeline.data_sampling.indexed_dataset": "MMapIndexedDataset "
        "MMapIndexedDatasetBuilder",
    "runtime.data_pipeline.data_sampling.variable_batch_size_and_lr":
        "get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed",
    "runtime.dataloader": "DeepSpeedDataLoader",
    "runtime.domino": "",
    "runtime.domino.transformer": "DominoTransformer DominoTransformerLayer",
    "runtime.fp16": "",
    "runtime.fp16.fused_optimizer": "FP16_Optimizer",
    "runtime.fp16.loss_scaler": "CreateLossScaler DynamicLossScaler LossScaler",
    "runtime.fp16.unfused_optimizer": "FP16_UnfusedOptimizer",
    "runtime.hybrid_engine": "DeepSpeedHybridEngine",
    "runtime.pipe": "LayerSpec PipelineModule ProcessTopology TiedLayerSpec",
    "runtime.pipe.engine": "PipelineEngine",
    "runtime.pipe.module": "LayerSpec PipelineError PipelineModule TiedLayerSpec",
    "runtime.pipe.topology": "PipeDataParallelTopology PipeModelDataParallelTopology "
                             "PipelineParallelGrid ProcessTopology",
    "runtime.sequence_parallel": "",
    "runtime.sequence_parallel.ulysses_sp": "TiledMLP UlyssesSPAttentionHF "
                                            "UlyssesSPDataLoaderAdapter sequence_tiled_compute",
    "runtime.utils": "CheckOverflow clip_grad_norm_ get_global_norm get_weight_norm",
    "runtime.zero": "DeepSpeedZeRoOffload TiledLinear TiledLinearReturnBias "
                    "unwrap_model_for_generation",
    "runtime.zero.config": "DeepSpeedZeroConfig",
    "runtime.zero.offload_config": "DeepSpeedZeroOffloadOptimizerConfig "
                                   "DeepSpeedZeroOffloadParamConfig",
    "runtime.zero.parameter_offload": "DeepSpeedZeRoOffload",
    "runtime.zero.stage3": "DeepSpeedZeroOptimizer_Stage3 unwrap_model_for_generation "
                           + _MEMORY.format(3, "cold") + " " + _MEMORY.format(3, "live"),
    "runtime.zero.stage_1_and_2": "DeepSpeedZeroOptimizer "
                                  + _MEMORY.format(2, "cold") + " " + _MEMORY.format(2, "live"),
    "runtime.zero.tiling": "TiledLinear TiledLinearReturnBias",
    "sequence": "",
    "sequence.layer": "DistributedAttention",
    "utils": f"OnDevice {_PARTS}",
    "utils.groups": "initialize",
    "utils.init_on_device": "OnDevice",
    "utils.tensor_fragment": _PARTS,
    "utils.timer": "SynchronizedWallClockTimer ThroughputTimer",
    "utils.zero_to_fp32": _CHECKPOINTS,
}  # fmt: skip


class _Refused(abc.ABCMeta):
    """The class of a name whose use raises Unsupported."""

    @at_border
    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise Unsupported(advice(cls._deepspeed))

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(advice(cls._deepspeed))


@functools.cache
def refused(module: str, name: str) -> Any:
    """What `name` of DeepSpeed's `module` is here; None unless it is one of the table."""
    if name not in REFUSED.get(module, "").split():
        return None
    full = f"{module}.{name}".lstrip(".")
    text = {"__module__": "ballast.deepspeed", "__doc__": advice(full)}
    return _Refused(name, (), {"_deepspeed": full, **text})
