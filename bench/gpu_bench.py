"""How fast gradients leave a GPU: a step beside the device's own copies. Not run on a GPU yet.

copy_mb_s: device memory into pinned memory and back, one copy each way of all bytes, by torch.
step_mb_s: the same bytes up as gradients and down as weights, in opt.step() with one server on this
    host. ratio: the second over the first; what the service's network takes is in it.
Each is the median of --steps. The result is verified: apply_delta of known updates leaves exactly
known weights. Without a GPU it says so in one line.

Comes from: scripts/gpu_check.sh. Goes to: stdout.
usage: gpu_bench.py [--elements N] [--steps N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch


def median_s(steps: int, call: Callable[[], None]) -> float:
    """Seconds of one call, between two points at which the GPU has nothing to do."""
    taken = []
    for _ in range(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def copies_s(elements: int, steps: int) -> float:
    """Both ways, into memory that is pinned before."""
    there = torch.ones(elements, device="cuda")
    here = torch.empty(elements, pin_memory=True)

    def both_ways() -> None:
        here.copy_(there, non_blocking=True)
        there.copy_(here, non_blocking=True)

    both_ways()
    return median_s(steps, both_ways)


def steps_s(elements: int, steps: int, endpoints: list[str]) -> float:
    """Of a job with one parameter; ValueError when its weights are not what the updates say."""
    import ballast.torch as bt

    weight = torch.nn.Parameter(torch.zeros(elements, device="cuda"))
    update = torch.arange(elements, device="cuda", dtype=torch.float32) % 7
    opt = bt.ApplyDelta([("weight", weight)], endpoints=endpoints, job="gpu-bench",
                        rank=0, world_size=1, durability="none")  # fmt: skip
    weight.grad = update
    opt.step()  # Attaches, and pins.
    taken = median_s(steps, opt.step)
    opt.close()
    if not torch.equal(weight.detach(), -update * (steps + 1)):
        raise ValueError("the weights are not the sum of the updates")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=64 << 20)
    parser.add_argument("--steps", type=int, default=7)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_bench: no NVIDIA GPU on this host; nothing was measured")
        return
    from ballast.launcher.servers import Servers, find_ballastd

    megabytes = 2 * 4 * given.elements / 1e6
    copies = megabytes / copies_s(given.elements, given.steps)
    with tempfile.TemporaryDirectory() as folder:
        built = find_ballastd(os.environ.get("BALLAST_TEST_BALLASTD"), os.environ)
        servers = Servers(built, 1, Path(folder), None)
        try:
            servers.start(os.environ, lambda: False)
            steps = megabytes / steps_s(given.elements, given.steps, servers.addresses)
        finally:
            servers.stop()
    print(f"copy_mb_s {copies:.0f}\nstep_mb_s {steps:.0f}\nratio {steps / copies:.3f}")
    print("weights verified: passed")


if __name__ == "__main__":
    main()
