"""Where the stages train: a real GPU, or (--cpu) a stand-in for CUDA on memory of the host.

The stand-in runs the CUDA part's own objects, and counts tensors of the host moved to it as a
GPU's. Its work runs at once, so it shows no fault of order.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from ballast.launcher.servers import Servers, find_ballastd
from ballast.torch import gpu

_jobs = itertools.count(1)


class RealGpu:
    """GPU 0 of this process."""

    name = "cuda"
    real = True

    def __init__(self) -> None:
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)

    def put(self, module: torch.nn.Module) -> torch.nn.Module:
        """Moves a model, whose gradients will be there as well."""
        return module.to(self.device)

    def put_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host, there."""
        return tensor.to(self.device)

    def finish(self) -> None:
        """Returns when the GPU has nothing to do."""
        torch.cuda.synchronize()

    def forget(self) -> None:
        """Between two jobs: no tensor of the first is used any more."""


class Standin:
    """Memory of the host that counts as GPU 0's."""

    name = "stand-in"
    real = False

    def __init__(self, path: Path) -> None:
        self.device = torch.device("cpu")
        self.library = ctypes.CDLL(str(path))
        self.library.standin_copied.restype = ctypes.c_size_t
        self.library.standin_reset()
        self._there: set[int] = set()
        gpu.LIBRARY = path
        gpu.on_gpu = lambda tensor: tensor.data_ptr() in self._there
        gpu.ordinal_of = lambda tensor: 0
        gpu.current_stream = lambda ordinal: 0

    def put(self, module: torch.nn.Module) -> torch.nn.Module:
        for p in module.parameters():
            self.put_tensor(p.data)
            p.register_post_accumulate_grad_hook(self._put_gradient)
        return module

    def put_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        self._there.add(tensor.data_ptr())
        self.library.standin_claim(
            ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes), 0
        )
        return tensor

    def _put_gradient(self, parameter: torch.Tensor) -> None:
        self.put_tensor(parameter.grad)

    def finish(self) -> None:
        pass

    def forget(self) -> None:
        # The allocator may give this memory to tensors of the host from now on.
        self.library.standin_reset()
        self._there.clear()


class Host:
    """Memory of the host that stays the host's."""

    name = "host"
    real = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def put(self, module: torch.nn.Module) -> torch.nn.Module:
        return module

    def put_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def finish(self) -> None:
        pass


def chosen(cpu: bool) -> RealGpu | Standin:
    """The place of this run. BALLAST_KIT_STANDIN names the stand-in's shared object."""
    return Standin(Path(os.environ["BALLAST_KIT_STANDIN"])) if cpu else RealGpu()


@contextlib.contextmanager
def servers(
    folder: Path, count: int, environ: Mapping[str, str] | None = None
) -> Iterator[Servers]:
    """`count` running servers with their data below `folder`, which is made; stopped at the end.

    environ: variables for them in addition to this process's. `.addresses` are the endpoints.
    """
    folder.mkdir(parents=True)
    running = Servers(find_ballastd(None, os.environ), count, folder, None)
    running.start({**os.environ, **(environ or {})}, lambda: False)
    try:
        yield running
    finally:
        running.stop()


def fresh_job(stem: str) -> str:
    """A name that no job of these servers has had."""
    return f"{stem}-{os.getpid()}-{next(_jobs)}"
