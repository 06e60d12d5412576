"""One trainer process of test_matrix.py's multi-process case; run by ballast-run.

usage: matrix_trainer.py RESULT_FOLDER STEPS. Writes rank<N>.pt: final weights and exported state.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import ballast.torch as bt

from e2e.lockstep import Noise, initial_weights
from e2e.oracle import Oracle, scale, slot_order_sum

SHAPES = {"embedding": (600, 400), "weight": (512, 400), "bias": (400,), "odd": (211, 233)}
HYPER = {"lr": 3e-3, "weight_decay": 0.05}


def environment() -> dict[str, str]:
    """The environment in which a trainer process imports the package and these helpers."""
    here = Path(__file__).resolve()
    folders = [here.parents[2] / "client" / "python", here.parents[1]]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def learning_rate(step: int, steps: int) -> float:
    return HYPER["lr"] * (1.0 - step / (2 * steps))


def reference(world: int, steps: int) -> Oracle:
    """Both oracles after `steps` steps on the sums of the processes' gradients."""
    oracle = Oracle([{"params": list(initial_weights(SHAPES, torch.float32).items()), **HYPER}])
    noise = Noise(SHAPES)
    for i in range(steps):
        for optimizer in oracle.optimizers:
            optimizer.param_groups[0]["lr"] = learning_rate(i, steps)
        sums = [slot_order_sum([noise.of(i, w, n) for w in range(world)]) for n in SHAPES]
        oracle.step([total * scale(world) for total in sums])
    return oracle


def main() -> None:
    folder, steps, rank = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ["RANK"])
    weights = initial_weights(SHAPES, torch.float32)
    params = {name: torch.nn.Parameter(w) for name, w in weights.items()}
    opt = bt.AdamW(params.items(), **HYPER, tile_elements=16384, extent_elements=65536)
    noise = Noise(SHAPES)
    for i in range(steps):
        opt.param_groups[0]["lr"] = learning_rate(i, steps)
        for name, p in params.items():
            p.grad = noise.of(i, rank, name)
        opt.step()
    result = {"weights": {n: p.detach() for n, p in params.items()}, "state": opt.export_state()}
    torch.save(result, folder / f"rank{rank}.pt")
    opt.close()


if __name__ == "__main__":
    main()
