"""What ballast.deepspeed costs a training loop over the plain optimizer.

shim_ratio: time of a loop with bt.AdamW over that of the same loop with the engine of
    ballast.deepspeed; 1 means that the engine costs nothing.
monitored_ratio: the same with csv_monitor, wall_clock_breakdown and steps_per_print 10; their
    output goes into a file.
aa_control: the same of a second plain loop: the machine's own variation.
The four loops take turns round by round, in changing order. A ratio is that of two rounds side by
side: the median of --steps of them, and of these the median of --pairs; spread has the least and
the largest. A small model, one trainer, one server, durability none. Results are verified: all
loops end with the same weights (differing_bits 0), the monitor has a row for each round, and the
timers have a line for each.

Comes from: bench/shim_bench. Goes to: stdout (JSON), stderr (progress).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ballast.deepspeed as deepspeed
import ballast.torch as bt
import torch
from ballast.launcher.servers import Servers

ROOT = Path(__file__).resolve().parent.parent
BARS = {"shim_ratio": 0.97, "monitored_ratio": 0.95}
KEYS = {"shim_ratio": "engine", "monitored_ratio": "monitored", "aa_control": "again"}
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

    def __init__(self, width: int, more: dict[str, Any]) -> None:
        """more: sections of the ds_config in addition to the optimizer."""
        adamw = {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}}
        config = {
            "train_micro_batch_size_per_gpu": SAMPLES, "optimizer": adamw,
            "gradient_clipping": 1.0, **more,
        }  # fmt: skip
        self.engine = deepspeed.initialize(model=model(width), config=config)[0]
        self.module, self.optimizer = self.engine.module, self.engine.optimizer

    def step(self, inputs: torch.Tensor) -> None:
        self.engine.backward(self.engine(inputs).square().mean())
        self.engine.step()


def seconds(loop: Plain | Engine, inputs: torch.Tensor) -> float:
    began = time.perf_counter()
    loop.step(inputs)
    return time.perf_counter() - began


def ratios(times: dict[str, list[float]]) -> dict[str, float]:
    """By loop: the median of the time of a plain round over that of the loop's neighbouring
    round."""
    return {
        name: statistics.median(p / t for p, t in zip(times["plain"], taken, strict=True))
        for name, taken in times.items()
    }


def measure(
    loops: dict[str, Plain | Engine], batches: list[torch.Tensor], pairs: int
) -> dict[str, Any]:
    """The ratios; the first `batches` are not counted."""
    found: list[dict[str, float]] = []
    plain: list[float] = []
    for pair in range(pairs + 1):
        times: dict[str, list[float]] = {name: [] for name in loops}
        for number, inputs in enumerate(batches):
            names = [*list(loops)[number % 4 :], *list(loops)[: number % 4]]
            for name in names if number % 8 < 4 else reversed(names):
                times[name].append(seconds(loops[name], inputs))
        if pair == 0:
            continue
        found.append(ratios(times))
        plain += times["plain"]
        shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in found[-1].items())
        print(f"shim_bench: pair {pair} of {pairs}: {shown}", file=sys.stderr)
    each = {key: [one[name] for one in found] for key, name in KEYS.items()}
    return {
        **{key: statistics.median(values) for key, values in each.items()},
        "spread": {key: [min(values), max(values)] for key, values in each.items()},
        "round_ms": statistics.median(plain) * 1e3,
    }


def differing_bits(loops: dict[str, Plain | Engine]) -> int:
    """Bits of the weights that differ between the first loop and the others."""
    first, *others = [
        torch.cat([p.detach().flatten() for p in loop.module.parameters()]).view(torch.int32)
        for loop in loops.values()
    ]
    return sum(int(x & 0xFFFFFFFF).bit_count() for o in others for x in (first ^ o)[first != o])


def watched(folder: Path) -> dict[str, Any]:
    """Sections that turn monitor and timers on."""
    csv = {"enabled": True, "output_path": str(folder), "job_name": "csv"}
    return {"csv_monitor": csv, "wall_clock_breakdown": True, "steps_per_print": 10}


def check_watched(folder: Path, printed: str, rounds: int) -> None:
    """ValueError where monitor or timers have missed a round."""
    rows = (folder / "csv" / "Train_Samples_lr.csv").read_text().splitlines()[1:]
    lines = printed.count("time (ms) | fwd: ")
    if (len(rows), lines) != (rounds, rounds):
        raise ValueError(f"{rounds} rounds, {len(rows)} rows of the monitor, {lines} of the timers")


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The result, without its judgement. The server runs, and the environment names it."""
    loops = {
        "plain": Plain(options.width), "engine": Engine(options.width, {}),
        "monitored": Engine(options.width, watched(folder)), "again": Plain(options.width),
    }  # fmt: skip
    output = folder / "output"
    try:
        batches = [torch.randn(SAMPLES, options.width) for _ in range(options.steps)]
        with open(output, "w") as file, contextlib.redirect_stdout(file):
            result = measure(loops, batches, options.pairs)
            loops["monitored"].engine.monitor.flush()
        check_watched(folder, output.read_text(), (options.pairs + 1) * options.steps)
        return {**result, "differing_bits": differing_bits(loops)}
    finally:
        for loop in loops.values():
            loop.optimizer.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="shim_bench", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--width", type=int, default=512, help="2 x WIDTH x WIDTH parameters")
    parser.add_argument("--steps", type=int, default=100, help="rounds of a pair")
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="ballast-bench-"))
    servers = Servers(ROOT / "build" / "release" / "bin" / "ballastd", 1, folder, None)
    servers.start(dict(os.environ), lambda: False)
    os.environ.update(BALLAST_ENDPOINTS=servers.addresses[0], BALLAST_JOB="shim",
                      BALLAST_DURABILITY="none")  # fmt: skip
    try:
        result = run(options, folder)
    finally:
        servers.stop()
        shutil.rmtree(folder)
    result["verified"] = result["differing_bits"] == 0
    result["bars"] = BARS
    result["missed"] = [key for key, bar in BARS.items() if result[key] < bar]
    print(json.dumps(result) if options.json else result)
    return 0 if result["verified"] else 1


if __name__ == "__main__":
    sys.exit(main())
