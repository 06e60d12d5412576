"""Records the log of scripts/deepspeed_way.py in DeepSpeed 0.19.8, case by case of answers.py.

DeepSpeed is no dependency of this repository; tests/python/record_policy_vectors.py says how to
install it into a folder, DIR. To record, or to see what differs from the file:

    .venv/bin/python tests/e2e/gpt2/record_deepspeed.py DIR           # compares
    .venv/bin/python tests/e2e/gpt2/record_deepspeed.py DIR --write   # writes the file of answers

On a processor whose library has no fp16 DeepSpeed refuses fp16; here it is made to try. Positions,
rates and scales are the same on every machine; losses differ in their last digits.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import math
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")  # as tests/conftest.py
import torch  # noqa: E402

from e2e.gpt2 import answers, ways  # noqa: E402
from e2e.gpt2.net import Case  # noqa: E402

VERSION = "0.19.8"
SEAT = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
LOSS_DIGITS = 6


def load_deepspeed(folder: str) -> None:
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", **SEAT)
    os.environ.setdefault("MASTER_PORT", "29591")
    sys.path.append(folder)
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    if deepspeed.__version__.split("+")[0] != VERSION:
        sys.exit(f"DeepSpeed {deepspeed.__version__} is installed there, not {VERSION}")
    logging.disable(logging.CRITICAL)
    type(get_accelerator()).is_fp16_supported = lambda _: True


def fused(folder: Path, *windows: int) -> int:
    """DeepSpeed steps torch's AdamW, here the fused one, which is exact."""
    given = dict(zip(("accumulation", "passes"), windows))
    adamw = torch.optim.AdamW.__init__
    torch.optim.AdamW.__init__ = functools.partialmethod(adamw, fused=True)
    ways.train("deepspeed", False, Case(**given)).write(folder, 0)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="where DeepSpeed is installed")
    parser.add_argument("--write", action="store_true", help="write deepspeed_answers.json")
    parser.add_argument("--fused", nargs="+", metavar=("OUT", "N"),
                        help="write the weights of one case with torch's fused AdamW; N: its "
                        "accumulation and passes")  # fmt: skip
    options = parser.parse_args()
    load_deepspeed(options.folder)
    torch.set_num_threads(1)
    if options.fused:
        return fused(Path(options.fused[0]), *map(int, options.fused[1:]))
    rounds = {}
    for name, case in answers.CASES.items():
        rounds[name] = ways.train("deepspeed", False, case).rounds
        for said in rounds[name]:
            loss = said["loss"]
            said["loss"] = round(loss, LOSS_DIGITS) if math.isfinite(loss) else None
    if options.write:
        lines = [
            f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(s)}" for s in said) + "]"
            for name, said in rounds.items()
        ]
        head = f'{{"deepspeed": "{VERSION}", "rounds": {{\n'
        answers.FILE.write_text(head + ",\n".join(lines) + "}}\n")
        return 0
    differing = [name for name, said in rounds.items() if answers.recorded().get(name) != said]
    print(f"{len(rounds)} cases, {len(differing)} differ: {' '.join(differing) or 'none'}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
