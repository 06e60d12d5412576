"""Copies between pinned memory and a GPU: the pipeline's next to bare ones, and torch's own.

Comes from: speed.py. Goes to: the program copy_rate, which does the pipeline's; torch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from ballast.torch import gpu

MIB = 1 << 20
FP32, BF16 = 1, 2


def program() -> Path:
    """The built copy_rate, in the kit or in a checkout's build."""
    folder = os.environ.get("BALLAST_KIT_BIN")
    beside = Path(os.environ.get("BALLAST_KIT_STANDIN", "none")).parent
    return (Path(folder) if folder else beside) / "copy_rate"


def plan(dtype: int, frame: int, buffers: int, ahead: int = 4, piece: int = 0) -> str:
    """An argument of copy_rate. piece: bytes of the tensors in a frame; 0: one tensor."""
    return f"{dtype}:{frame}:{buffers}:{ahead}:{piece or frame}"


def rates(
    bytes: int, repeats: int, plans: Sequence[str], seconds: float, lose: bool = False
) -> Iterator[dict[str, Any]]:
    """What copy_rate says of each plan, as it comes. RuntimeError with its words.

    lose: one frame of weights is lost. The program is ended after `seconds`.
    """
    command = [str(program()), str(gpu.LIBRARY), str(bytes), str(repeats), str(int(lose)), *plans]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        late = threading.Timer(seconds, it.kill)
        late.start()
        try:
            yield from map(json.loads, it.stdout)
            said = it.stderr.read()
        finally:
            it.kill()
            late.cancel()
    if it.returncode != 0:
        raise RuntimeError(f"copy_rate ended with {it.returncode}: {said.strip()[-400:]}")


def alternating(repeats: int, calls: Sequence[Callable[[], None]]) -> list[float]:
    """Medians of seconds of each call; the calls alternate, and each runs once before."""
    taken: list[list[float]] = [[] for _ in calls]
    for repeat in range(-1, repeats):
        for call, of in zip(calls, taken):
            began = time.perf_counter()
            call()
            if repeat >= 0:
                of.append(time.perf_counter() - began)
    return [statistics.median(of) for of in taken]


class Bare:
    """torch's copies of `bytes`, each way, between pinned memory and GPU 0 (or two host buffers).

    Each call returns when its copies have ended.
    """

    def __init__(self, bytes: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.bytes = bytes
        self._there = [torch.ones(bytes, dtype=torch.uint8, device=device) for _ in range(2)]
        self._here = [torch.empty(bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._streams = [torch.cuda.Stream() for _ in range(2)] if pinned else []

    def up(self) -> None:
        self._here[0].copy_(self._there[0], non_blocking=True)
        self._finish()

    def down(self) -> None:
        self._there[1].copy_(self._here[1], non_blocking=True)
        self._finish()

    def one_after_the_other(self) -> None:
        self._here[0].copy_(self._there[0], non_blocking=True)
        self._there[1].copy_(self._here[1], non_blocking=True)
        self._finish()

    def at_once(self) -> None:
        with torch.cuda.stream(self._streams[0]):
            self._here[0].copy_(self._there[0], non_blocking=True)
        with torch.cuda.stream(self._streams[1]):
            self._there[1].copy_(self._here[1], non_blocking=True)
        self._finish()

    def wrong(self) -> int:
        """Bytes that did not arrive, of what up() and down() have copied."""
        arrived = self._there[1].cpu()
        return int((self._here[0] != 1).sum()) + int((self._here[1] != arrived).sum())

    def _finish(self) -> None:
        if self._streams:
            torch.cuda.synchronize()
