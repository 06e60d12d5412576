"""Communicators of this process, over the extension ballast._nccl: made, used, compared.

Comes from: nccl.py, nccl_ranks.py. Goes to: NCCL, which torch brings; in a rehearsal to the fake
one of the tests, on memory of the host.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from pathlib import Path
from typing import Any

import torch
from ballast.torch import gpu
from ballast.torch import nccl as product

NUMBERS = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
ELEMENTS = 4099
UNTOUCHED = -7.0


def fake() -> Path:
    """Where the fake NCCL is carried: a folder of its own, which no search path has."""
    folders = [os.environ.get("BALLAST_KIT_LIB"), os.environ.get("BALLAST_KIT_STANDIN")]
    beside = [Path(folders[0] or "none"), Path(folders[1] or "none").parent]
    found = [path for path in (at / "nccl" / "libnccl.so.2" for at in beside) if path.exists()]
    return found[0] if found else beside[0] / "nccl" / "libnccl.so.2"


def rehearse() -> str:
    """Makes this process use the fake NCCL, on memory of the host; why it cannot, or ""."""
    if torch.version.cuda is not None:
        return "this torch brings NCCL itself, beside which the fake one cannot be loaded"
    if not fake().exists():
        return f"the kit has no fake NCCL at {fake()}"
    ctypes.CDLL(str(fake()))
    os.environ[product.ON_HOST] = "1"
    return ""


def mapped() -> list[str]:
    """The files of each NCCL that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split()[-1] for line in lines if "/libnccl.so" in line}
    return sorted(paths)


class Links:
    """Communicators of one process. cpu: on memory of the host."""

    def __init__(self, cpu: bool) -> None:
        self.device = torch.device("cpu") if cpu else torch.device("cuda", 0)
        self._native: Any = importlib.import_module("ballast._nccl")
        # The product's own, so that all communicators of the process know each other.
        self.comms: Any = product._comms()
        self._memory = (
            self._native.host()
            if cpu
            else self._native.gpu(str(gpu.LIBRARY), 0, gpu.current_stream(0))
        )
        self._epoch = 0

    def make(self, world: int = 1, timeout_s: float = 20.0) -> Any:
        """A communicator in which this process is rank 0. RuntimeError as the extension."""
        self._epoch += 1
        given = self.comms.new_id()
        return self._native.Communicator(
            self.comms, self._memory, given, (0, world), self._epoch, timeout_s, lambda: None
        )

    def used(self, link: Any, dtype: torch.dtype = torch.float32, round: int = 1) -> str:
        """The fault of a sum and a copy over one rank; "" for none.

        An error is "error: ...", and "touched: ..." where a call that failed has written.
        """
        whole = torch.arange(ELEMENTS, device=self.device).remainder(251).to(dtype)
        share, gathered = torch.full_like(whole, UNTOUCHED), torch.full_like(whole, UNTOUCHED)
        try:
            link.reduce_scatter(
                whole.data_ptr(), share.data_ptr(), ELEMENTS, NUMBERS[dtype], round, 0
            )
            bytes = share.numel() * share.element_size()
            link.all_gather(share.data_ptr(), gathered.data_ptr(), bytes, round, 0)
        except RuntimeError as error:
            clean = bool((share == UNTOUCHED).all()) and bool((gathered == UNTOUCHED).all())
            return f"{'error' if clean else 'touched'}: {str(error).strip()[:300]}"
        wrong = int((share != whole).sum()) + int((gathered != whole).sum())
        return f"{wrong} elements of {2 * ELEMENTS} are wrong" if wrong else ""

    def fail(self, link: Any) -> str:
        """Makes a call on `link` fail, which ends all communicators of the process; its text."""
        try:
            link.reduce_scatter(0, 0, 0, 0, 1, 0)  # no dtype
        except RuntimeError as error:
            return str(error).strip()
        return ""
