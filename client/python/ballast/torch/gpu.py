"""Where a job's tensors are: in host memory, or on the one GPU of this process.

Comes from: ballast.torch.manifest, .membership. Goes to: the extension module (Gpu), through
ballast.session. The CUDA part of the client is opened when the first tensor on a GPU joins a job.
Tested on a stand-in for CUDA; on a GPU by the GPU kit (docs/gpu.md).
"""

from __future__ import annotations

import pathlib
from typing import Any

import torch

from ballast import backend
from ballast.errors import Unsupported

# Next to this package; a wheel brings it, and a build puts it there.
LIBRARY = pathlib.Path(__file__).resolve().parent.parent / "libballast_cuda.so"


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements are in memory of an NVIDIA GPU."""
    return tensor.device.type == "cuda" and torch.version.hip is None


def ordinal_of(tensor: torch.Tensor) -> int:
    """CUDA's number of the GPU that holds a tensor."""
    return int(tensor.device.index)


def current_stream(ordinal: int) -> int:
    """The stream (cudaStream_t) on which torch queues this thread's work now."""
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


def refuse_capture(param_groups: list[dict[str, Any]], job: str) -> None:
    """Unsupported while torch's current stream captures a CUDA graph and a parameter is on a GPU.

    A step is no work of the GPU alone, so a graph cannot repeat it. Costs nothing where torch has
    not used a GPU.
    """
    if not torch.cuda.is_initialized() or not torch.cuda.is_current_stream_capturing():
        return
    if any(on_gpu(p) for group in param_groups for p in group["params"]):
        raise Unsupported(
            "torch captures a CUDA graph, of which the optimizer's step cannot be a part; capture "
            "forward and backward, and call step() or attach() after the capture",
            job=job,
        )


class Gpu:
    """The GPU of one job's tensors. handle: the extension module's Gpu."""

    def __init__(self, ordinal: int, pinned_bytes: int) -> None:
        self.ordinal = ordinal
        self.handle: Any = backend.core().Gpu(str(LIBRARY), ordinal, pinned_bytes)

    def note_stream(self) -> None:
        """Says which stream of torch forms gradients and reads weights; before each call."""
        self.handle.set_stream(current_stream(self.ordinal))


def of(tensors: list[tuple[str, torch.Tensor]], pinned_bytes: int) -> Gpu | None:
    """The GPU of these named tensors, or None when all are in host memory.

    pinned_bytes: host memory for frames on their way. Unsupported, naming both, when two tensors
    are on different GPUs.
    """
    placed = [(name, ordinal_of(tensor)) for name, tensor in tensors if on_gpu(tensor)]
    if not placed:
        return None
    first, ordinal = placed[0]
    _refuse_others(placed, ordinal, f"parameter {first!r} is on GPU {ordinal}")
    return Gpu(ordinal, pinned_bytes)


def refuse_joining(tensors: list[tuple[str, torch.Tensor]], gpu: Gpu | None) -> None:
    """Unsupported, naming the tensor, for one that a running job cannot take from where it is."""
    placed = [(name, ordinal_of(tensor)) for name, tensor in tensors if on_gpu(tensor)]
    if placed and gpu is None:
        raise Unsupported(
            f"parameter {placed[0][0]!r} is on GPU {placed[0][1]}, and the job began with "
            "parameters on the CPU alone; build the optimizer with one that is on the GPU"
        )
    if gpu is not None:
        _refuse_others(placed, gpu.ordinal, f"the job is on GPU {gpu.ordinal}")


def _refuse_others(placed: list[tuple[str, int]], ordinal: int, says: str) -> None:
    for name, other in placed:
        if other != ordinal:
            raise Unsupported(
                f"{says} and {name!r} on GPU {other}; a process trains on one GPU: start a "
                "trainer per GPU"
            )
