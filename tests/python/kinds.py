"""One step of one tensor by the kernels of any optimizer kind, through the bench library.

Comes from: test_kinds.py. Goes to: bench/parts/kind_step.cc.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from serving import REPO

LIBRARY = REPO / "build" / "release" / "lib" / "libballast_kernel_bench.so"
DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}


@dataclass(frozen=True)
class Kind:
    """A row of common/job/optimizer.h, in the order of the wire."""

    number: int
    hyper: tuple[str, ...]
    options: tuple[str, ...]
    arrays: tuple[str, ...]  # after the master


_ADAM_HYPER = ("lr", "beta1", "beta2", "eps", "weight_decay")
_ADAM_ARRAYS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
ADAMW = Kind(1, _ADAM_HYPER, ("amsgrad", "maximize"), _ADAM_ARRAYS)
ADAM = Kind(2, _ADAM_HYPER, ("amsgrad", "maximize"), _ADAM_ARRAYS)
SGD = Kind(
    3,
    ("lr", "momentum", "dampening", "weight_decay"),
    ("has_momentum", "nesterov", "maximize"),
    ("momentum_buffer",),
)
ADAGRAD = Kind(
    4,
    ("lr", "lr_decay", "weight_decay", "eps"),
    ("initial_accumulator_value", "maximize", "raw_numerator"),
    ("sum",),
)


def library() -> ctypes.CDLL:
    """The bench library; skips the test where it is not built."""
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built")
    return ctypes.CDLL(str(LIBRARY))


@dataclass
class ServiceTensor:
    """A tensor's master, arrays and step count, as the service keeps them."""

    kind: Kind
    options: Mapping[str, float]
    master: torch.Tensor  # fp32, changed in place
    initial: float = 0.0  # of the first array
    step_count: int = 0
    arrays: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._options = self._doubles(self.kind.options, self.options)
        self._library = library()
        self._library.kind_arrays.restype = ctypes.c_size_t
        count = self._library.kind_arrays(self.kind.number, self._options) - 1
        self.arrays = [torch.zeros_like(self.master) for _ in range(count)]
        if self.arrays:
            self.arrays[0].fill_(self.initial)

    @staticmethod
    def _doubles(names: tuple[str, ...], values: Mapping[str, Any]) -> Any:
        return (ctypes.c_double * max(1, len(names)))(*(float(values[name]) for name in names))

    def step(self, hyper: Mapping[str, float], grad: torch.Tensor, scale: float = 1.0) -> None:
        """One step with an fp32 or 16-bit gradient; `hyper` has every key of the kind."""
        self.step_count += 1
        state = [self.master, *self.arrays]
        pointers = (ctypes.c_void_p * len(state))(*(tensor.data_ptr() for tensor in state))
        failed = self._library.kind_step(
            self.kind.number,
            self._options,
            self._doubles(self.kind.hyper, hyper),
            ctypes.c_uint64(self.step_count),
            b"",
            pointers,
            ctypes.c_void_p(grad.data_ptr()),
            DTYPES[grad.dtype],
            None,
            1,
            ctypes.c_size_t(grad.numel()),
            ctypes.c_float(scale),
        )
        assert failed == 0
