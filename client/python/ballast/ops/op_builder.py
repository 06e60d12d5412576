"""DeepSpeed's op builders for files: AsyncIOBuilder gives DeepNVMe's handle, GDSBuilder an error.

Comes from: scripts written for deepspeed.ops.op_builder. Goes to: ballast.ops.aio. Nothing is
compiled when a script runs: load() imports what CMake has built. Thread safety: pure functions.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from ballast.errors import Unsupported, at_border

__all__ = ["AsyncIOBuilder", "GDSBuilder"]


class AsyncIOBuilder:
    """Loads ballast.ops.aio.async_io, which has the names of DeepSpeed's module async_io."""

    BUILD_VAR = "DS_BUILD_AIO"
    NAME = "async_io"

    def __init__(self) -> None:
        self.name = self.NAME

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


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"ballast.ops.op_builder has no {name!r}: AsyncIOBuilder and GDSBuilder are there; "
        "optimizers are stepped by the service, see ballast.torch"
    )
