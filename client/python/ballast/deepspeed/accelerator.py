"""deepspeed.accelerator: the device of this process, by DeepSpeed's names.

Comes from: scripts, as `get_accelerator().device_name()`. Goes to: torch.cuda, or the CPU where no
GPU is. Thread safety: as torch.cuda. Source: deepspeed/accelerator of 0.19.8.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable
from typing import Any

import torch

from ballast.deepspeed.submodules import advise

__path__: list[str] = []
__getattr__ = advise("accelerator")


class DeepSpeedAccelerator:
    """The common part of the CPU and CUDA accelerators. Any other name is torch.cuda's, such as
    memory_summary()."""

    _name = "cpu"
    _communication_backend_name = "gloo"

    def device_name(self, device_index: int | None = None) -> str:
        """The device's name for torch: cpu, cuda, or cuda:N with an index."""
        return self._name

    def communication_backend_name(self) -> str:
        """What init_distributed() may be given: gloo or nccl."""
        return self._communication_backend_name

    def is_available(self) -> bool:
        """Whether the device can be used."""
        return True

    def is_bf16_supported(self) -> bool:
        return torch.bfloat16 in self.supported_dtypes()

    def is_fp16_supported(self) -> bool:
        return torch.float16 in self.supported_dtypes()

    def supported_dtypes(self) -> list[torch.dtype]:
        """Dtypes of models that train on it."""
        return [torch.float, torch.float16, torch.bfloat16]

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on a device of this kind."""
        return tensor.device.type == self._name

    def is_triton_supported(self) -> bool:
        return self._name == "cuda"

    def is_synchronized_device(self) -> bool:
        """Whether an operation has ended when its call returns."""
        return self._name == "cpu"

    use_host_timers = resolves_data_dependency = is_synchronized_device
    handles_memory_backpressure = is_synchronized_device

    def random(self) -> Any:
        return torch.random

    def default_generator(self, device_index: int) -> Any:
        return torch.default_generator

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        return callback()

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> None:
        """Begins a range for a profiler, on CUDA."""

    def range_pop(self, domain: Any = None) -> None: ...

    def pin_memory(self, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def op_builder_dir(self) -> str:
        return "ballast.ops.op_builder"

    def get_op_builder(self, class_name: str) -> Any:
        """The class of that name in ballast.ops.op_builder."""
        from ballast.ops import op_builder  # Which needs this module's package.

        return getattr(op_builder, class_name)

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()

    def get_compile_backend(self) -> str:
        return "inductor"

    def export_envs(self) -> list[str]:
        return []

    def visible_devices_envs(self) -> list[str]:
        return ["CUDA_VISIBLE_DEVICES"]

    def __getattr__(self, name: str) -> Any:
        kind = name.removesuffix("Tensor")
        if kind != name:  # FloatTensor and its like make tensors on the device.
            return getattr(torch if self._name == "cpu" else torch.cuda, name)
        raise AttributeError(f"the accelerator of ballast.deepspeed has no {name!r}: use torch")


class _Cpu(DeepSpeedAccelerator):
    Stream = Event = None
    amp = None

    def device(self, device_index: int | None = None) -> Any:
        return contextlib.nullcontext()

    def set_device(self, device_index: Any) -> None: ...

    def current_device(self) -> int:
        return int(os.environ.get("LOCAL_RANK", "0"))

    def current_device_name(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        """The trainers of this host, each of which has the CPU."""
        names = ("LOCAL_SIZE", "LOCAL_WORLD_SIZE")
        return next((int(os.environ[name]) for name in names if os.environ.get(name)), 1)

    def synchronize(self, device_index: int | None = None) -> None: ...

    def empty_cache(self) -> None: ...

    def manual_seed(self, seed: int) -> Any:
        return torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        torch.set_rng_state(new_state)

    def stream(self, stream: Any) -> Any:
        return contextlib.nullcontext()

    def current_stream(self, device_index: int | None = None) -> None: ...

    default_stream = current_stream

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Bytes of memory that this process has."""
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    memory_reserved = memory_cached = memory_allocated

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """The most bytes that it has had; nothing sets this back."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return max(most, self.memory_allocated())

    max_memory_reserved = max_memory_cached = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None: ...

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def total_memory(self, device_index: int | None = None) -> int:
        return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()

    def available_memory(self, device_index: int | None = None) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * resource.getpagesize()


class _Cuda(DeepSpeedAccelerator):
    _name = "cuda"
    _communication_backend_name = "nccl"

    def device_name(self, device_index: int | None = None) -> str:
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def current_device_name(self) -> str:
        return self.device_name(torch.cuda.current_device())

    def supported_dtypes(self) -> list[torch.dtype]:
        kinds = [torch.float, torch.float16]
        return [*kinds, torch.bfloat16] if torch.cuda.is_bf16_supported() else kinds

    def default_generator(self, device_index: int) -> Any:
        return torch.cuda.default_generators[device_index]

    def pin_memory(self, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor.pin_memory()

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> None:
        torch.cuda.nvtx.range_push(msg)

    def range_pop(self, domain: Any = None) -> None:
        torch.cuda.nvtx.range_pop()

    def total_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.mem_get_info(device_index)[1]

    def available_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.mem_get_info(device_index)[0]

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch.cuda, name, None)
        return super().__getattr__(name) if found is None else found


_found: DeepSpeedAccelerator | None = None


def get_accelerator() -> DeepSpeedAccelerator:
    """The GPU where torch finds one, else the CPU; the same object each time."""
    global _found
    if _found is None:
        _found = _Cuda() if torch.cuda.is_available() else _Cpu()
    return _found


def is_current_accelerator_supported() -> bool:
    return True
