"""Steps whose work is their bytes: gradients up to servers on this host, weights down again.

Comes from: speed.py. Goes to: ballast.torch.ApplyDelta, which computes next to nothing; the result
is known and verified. CPU seconds are those that Linux counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ballast.torch as bt
import torch

from gpu_kit import copies, place

TENSORS = 8  # of a job, all of one length
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of these processes so far."""
    ticks = 0
    for pid in pids:
        # The name in the second field may hold anything but ")".
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


class Job:
    """A job of one trainer with `bytes` of parameters; each step adds the same known update."""

    def __init__(
        self, where: place.RealGpu | place.Standin, endpoints: Sequence[str], bytes: int,
        dtype: torch.dtype, **options: Any,
    ) -> None:  # fmt: skip
        self._place = where
        elements = bytes // dtype.itemsize // TENSORS
        self._weights, self._updates = [], []
        for _ in range(TENSORS):
            weight = torch.nn.Parameter(where.put_tensor(torch.zeros(elements, dtype=dtype)))
            update = torch.arange(elements).remainder(7).to(dtype)
            self._updates.append(where.put_tensor(update))
            self._weights.append(weight)
        if not where.real:  # A Parameter has the memory of its tensor, which counts as the GPU's.
            for weight in self._weights:
                where.put_tensor(weight.data)
        self.opt = bt.ApplyDelta(
            [(f"weight{i}", weight) for i, weight in enumerate(self._weights)],
            endpoints=",".join(endpoints), job=place.fresh_job("steps"), rank=0, world_size=1,
            **options,
        )  # fmt: skip
        self.steps, self.cpu_s = 0, 0.0
        for weight, update in zip(self._weights, self._updates):
            weight.grad = update

    def step(self) -> None:
        """Returns when the GPU has the new weights."""
        began = time.process_time()
        self.opt.step()
        self.cpu_s += time.process_time() - began
        self._place.finish()
        self.steps += 1

    def wrong(self) -> int:
        """Weights that differ from the sum of the updates. At most 36 steps are exact in bf16."""
        return sum(
            int((weight.detach() != -update * self.steps).sum())
            for weight, update in zip(self._weights, self._updates)
        )

    def close(self) -> None:
        self.opt.close()
        for weight in self._weights:
            weight.grad = None


def measured(
    where: place.RealGpu | place.Standin, running: Any, bytes: int, dtype: torch.dtype,
    repeats: int, bare: copies.Bare | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Medians of a job's steps at `running` servers, in turn with `bare` copies.

    Has seconds, gb_s of both ways together, wrong weights, CPU seconds of a step here and at the
    servers, and the parts of the last round in ms.
    """
    job = Job(where, running.addresses, bytes, dtype, **options)
    try:
        job.step()  # Attaches, and pins.
        pids = [child.pid for child in running.children]
        calls = [job.step] if bare is None else [bare.one_after_the_other, job.step]
        before, own, steps = cpu_seconds(pids), job.cpu_s, job.steps
        taken = copies.alternating(repeats, calls)
        steps = job.steps - steps
        found = {
            "step_s": round(taken[-1], 4), "gb_s": round(2 * bytes / taken[-1] / 1e9, 3),
            "wrong": job.wrong(), "trainer_cpu_s": round((job.cpu_s - own) / steps, 3),
            "server_cpu_s": round((cpu_seconds(pids) - before) / steps, 3),
            "parts_ms": parts(job.opt.last_report or {}),
        }  # fmt: skip
        if bare is not None:
            found["bare_gb_s"] = round(2 * bytes / taken[0] / 1e9, 3)
            found["ratio"] = round(taken[0] / taken[1], 4)
    finally:
        job.close()
    return found


def parts(report: Mapping[str, Any]) -> dict[str, float]:
    """Of a round: push, wait and pull at the trainer; collect, vote and step at the servers."""
    names = ("push", "wait", "pull", "collect", "vote", "step")
    return {
        name: round(report[f"{name}_ns"] / 1e6, 2) for name in names if f"{name}_ns" in report
    }
