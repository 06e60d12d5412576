"""What ballast.deepspeed costs a training loop over the plain optimizer.

shim_ratio: time of a loop with bt.AdamW over that of the same loop with the engine of
    ballast.deepspeed; 1 means that the engine costs nothing.
monitored_ratio: the same with csv_monitor on.
aa_control: the plain loop of one block over that of the next: what the machine does by itself.
Each is the median of --pairs blocks of --steps rounds, taken in turns, the order reversed in every
second pair. A small model, one trainer, one server, durability none. Results are verified: all
loops end with the same weights (differing_bits 0).

Comes from: bench/shim_bench. Goes to: stdout (JSON), stderr (progress).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import ballast.deepspeed as deepspeed
import ballast.torch as bt
import torch
from ballast.launcher.servers import Servers

ROOT = Path(__file__).resolve().parent.parent
BARS = {"shim_ratio": 0.97, "monitored_ratio": 0.95}
SAMPLES = 8


def model(width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width)
    )


class Plain:
    """The loop that a script without DeepSpeed has."""

    def __init__(self, width: int) -> None:
        self.module = model(width)
        named = self.module.named_parameters()
        self.optimizer = bt.AdamW(named, lr=1e-4, weight_decay=0.0, max_grad_norm=1.0)

    def step(self, inputs: torch.Tensor) -> None:
        self.module(inputs).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Engine:
    """The same loop as a DeepSpeed script has it."""

    def __init__(self, width: int, monitor: dict) -> None:
        adamw = {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}}
        config = {
            "train_micro_batch_size_per_gpu": SAMPLES, "optimizer": adamw,
            "gradient_clipping": 1.0, "csv_monitor": monitor,
        }  # fmt: skip
        self.engine = deepspeed.initialize(model=model(width), config=config)[0]
        self.module, self.optimizer = self.engine.module, self.engine.optimizer

    def step(self, inputs: torch.Tensor) -> None:
        self.engine.backward(self.engine(inputs).square().mean())
        self.engine.step()


def seconds(loop: Plain | Engine, batches: list[torch.Tensor]) -> float:
    began = time.perf_counter()
    for inputs in batches:
        loop.step(inputs)
    return time.perf_counter() - began


def measure(loops: dict[str, Plain | Engine], batches: list[torch.Tensor], pairs: int) -> dict:
    times: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        seconds(loop, batches)
    for pair in range(pairs):
        for name in loops if pair % 2 == 0 else reversed(loops):
            times[name].append(seconds(loops[name], batches))
        print(f"shim_bench: pair {pair + 1} of {pairs}: " + ", ".join(
            f"{name} {taken[-1] * 1e3:.0f} ms" for name, taken in times.items()), file=sys.stderr)
    ratios = {
        name: statistics.median(p / t for p, t in zip(times["plain"], taken, strict=True))
        for name, taken in times.items()
    }
    return {
        "shim_ratio": ratios["engine"],
        "monitored_ratio": ratios["monitored"],
        "aa_control": ratios["again"],
        "round_ms": statistics.median(times["plain"]) / len(batches) * 1e3,
    }


def differing_bits(loops: dict[str, Plain | Engine]) -> int:
    """Parameters that differ in any element between the first loop and the others."""
    first, *others = [list(loop.module.parameters()) for loop in loops.values()]
    return sum(not torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(prog="shim_bench", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--width", type=int, default=256, help="2 x WIDTH x WIDTH parameters")
    parser.add_argument("--steps", type=int, default=100, help="rounds of a block")
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="ballast-bench-"))
    servers = Servers(ROOT / "build" / "release" / "bin" / "ballastd", 1, folder, None)
    servers.start(dict(os.environ), lambda: False)
    os.environ.update(BALLAST_ENDPOINTS=servers.addresses[0], BALLAST_JOB="shim",
                      BALLAST_DURABILITY="none")  # fmt: skip
    csv = {"enabled": True, "output_path": str(folder), "job_name": "csv"}
    loops = {
        "plain": Plain(options.width), "engine": Engine(options.width, {}),
        "monitored": Engine(options.width, csv), "again": Plain(options.width),
    }  # fmt: skip
    try:
        batches = [torch.randn(SAMPLES, options.width) for _ in range(options.steps)]
        result = measure(loops, batches, options.pairs)
        result["differing_bits"] = differing_bits(loops)
    finally:
        for loop in loops.values():
            loop.optimizer.close()
        servers.stop()
        shutil.rmtree(folder)
    result["bars"] = BARS
    result["missed"] = [key for key, bar in BARS.items() if result[key] < bar]
    print(json.dumps(result) if options.json else result)
    return 1 if result["differing_bits"] else 0


if __name__ == "__main__":
    sys.exit(main())
