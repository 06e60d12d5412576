"""Three rounds of a small job on the place, for compute-sanitizer to watch.

usage: python -m gpu_kit.three_rounds [--cpu] ENDPOINT...
  Exit code 1 where a bit differs from the host's.
Comes from: sanitizer.py. Goes to: running servers.
"""

from __future__ import annotations

import argparse
import sys

import torch

from gpu_kit import place, streams
from gpu_kit.twins import Twins

ROUNDS = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu_kit.three_rounds")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("endpoints", nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(1)
    where = place.chosen(given.cpu)
    model = streams.Tensors(10_000)
    twins = Twins(where, given.endpoints, model, pinned_bytes=4 << 20, extent_elements=4096,
                  tile_elements=64)  # fmt: skip
    for number in range(ROUNDS):
        fresh = streams.gradients(model, number)
        for p, gradient in zip(twins.there.parameters(), fresh, strict=True):
            p.grad = where.put_tensor(gradient)
        twins.step()
    bits = twins.weight_bits() + twins.state_bits()
    print(f"{bits} bits differ after {twins.ours.round} rounds")
    twins.close()
    return 1 if bits else 0


if __name__ == "__main__":
    sys.exit(main())
