"""DeepSpeed's op builders: AsyncIOBuilder gives DeepNVMe's handle; others say whether Ballast can.

Comes from: scripts written for deepspeed.ops.op_builder. Goes to: ballast.ops.aio. Nothing is
compiled when a script runs: load() imports what CMake has built. Thread safety: pure functions.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from ballast.errors import Unsupported, at_border

_STEPPED = "cpu_adam cpu_adagrad cpu_lion fused_adam fused_lamb fused_lion"
_INSTEAD = "initialize() takes the optimizer class, such as ops.adam.FusedAdam, and needs no op"
# Builders by their classes' names; of each the op.
_OTHERS = {
    "CPUAdamBuilder": "cpu_adam", "CPUAdagradBuilder": "cpu_adagrad", "CPULionBuilder": "cpu_lion",
    "FusedAdamBuilder": "fused_adam", "FusedLambBuilder": "fused_lamb",
    "FusedLionBuilder": "fused_lion", "UtilsBuilder": "utils",
    "CCLCommBuilder": "deepspeed_ccl_comm", "DeepCompileBuilder": "dc",
    "EvoformerAttnBuilder": "evoformer_attn", "FPQuantizerBuilder": "fp_quantizer",
    "InferenceBuilder": "transformer_inference", "InferenceCoreBuilder": "inference_core_ops",
    "InferenceCutlassBuilder": "cutlass_ops", "PinMemoryBuilder": "pin_memory",
    "QuantizerBuilder": "quantizer", "RaggedOpsBuilder": "ragged_device_ops",
    "RaggedUtilsBuilder": "ragged_ops", "RandomLTDBuilder": "random_ltd",
    "ShareMemCommBuilder": "deepspeed_shm_comm", "SpatialInferenceBuilder": "spatial_inference",
    "StochasticTransformerBuilder": "stochastic_transformer", "TransformerBuilder": "transformer",
    "NotImplementedBuilder": "deepspeed_not_implemented",
}  # fmt: skip
__all__ = ["AsyncIOBuilder", "GDSBuilder", *_OTHERS]


class _Builder:
    """What all builders say of their op."""

    NAME = ""

    def __init__(self) -> None:
        self.name = self.NAME

    def absolute_name(self) -> str:
        """The module that load() gives."""
        return f"ballast.ops.op_builder.{self.NAME}"

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether there is something in place of the op. verbose: has no effect."""
        return self.NAME in _STEPPED.split() or self.NAME == "utils"

    @at_border
    def load(self, verbose: bool = False) -> Any:
        """Something in place of the op: `utils` has flatten() and unflatten(), an optimizer's op
        has no function. Unsupported, with what to use, where is_compatible() is False."""
        if self.NAME == "utils":
            return SimpleNamespace(
                flatten=_flatten_dense_tensors, unflatten=_unflatten_dense_tensors
            )
        if not self.is_compatible():
            raise Unsupported(f"{type(self).__name__}: Ballast has no op {self.NAME}; use torch")
        return _Op(self.NAME)


class _Op:
    """In place of an optimizer's extension module, whose functions nothing here calls."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the op {self._name} has no {name!r} here: {_INSTEAD}")


class AsyncIOBuilder(_Builder):
    """Loads ballast.ops.aio.async_io, which has the names of DeepSpeed's module async_io."""

    BUILD_VAR = "DS_BUILD_AIO"
    NAME = "async_io"

    def absolute_name(self) -> str:
        """The module that load() gives."""
        return f"ballast.ops.aio.{self.NAME}"

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether the extension module is built for this Python and can be loaded.

        verbose: says on stderr why not.
        """
        try:
            importlib.import_module("ballast._aio")
        except ImportError as error:
            if verbose:
                print(f"ballast: async_io: {error}", file=sys.stderr)
            return False
        return True

    def load(self, verbose: bool = False) -> ModuleType:
        """The module, with aio_handle, aio_read, aio_write and deepspeed_memcpy.

        verbose: has no effect. ImportError, with the command that builds it, when it is missing.
        """
        return importlib.import_module(self.absolute_name())


class GDSBuilder(AsyncIOBuilder):
    """GPUDirect Storage, which Ballast has not: load() raises."""

    BUILD_VAR = "DS_BUILD_GDS"
    NAME = "gds"

    def is_compatible(self, verbose: bool = False) -> bool:
        """False."""
        return False

    @at_border
    def load(self, verbose: bool = False) -> ModuleType:
        """Raises Unsupported."""
        raise Unsupported(
            "GDSBuilder: Ballast has no GPUDirect Storage (gds_handle); use "
            "AsyncIOBuilder().load().aio_handle(...) with CPU tensors, and tensor.to(device)"
        )


globals().update({kind: type(kind, (_Builder,), {"NAME": op}) for kind, op in _OTHERS.items()})
ALL_OPS: dict[str, Any] = {
    kind.NAME: kind() for kind in (globals()[name] for name in __all__)
}

# By op: whether the builder's load() gives something.
__compatible_ops__ = {name: builder.is_compatible() for name, builder in ALL_OPS.items()}


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"ballast.ops.op_builder has no {name!r}. It has {', '.join(__all__[:2])}, and DeepSpeed's "
        "builders of optimizers; see ballast.torch"
    )
