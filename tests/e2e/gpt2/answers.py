"""Cases in which rounds are skipped, and what DeepSpeed 0.19.8 has answered to them.

Comes from: record_deepspeed.py, which writes deepspeed_answers.json. Goes to: the tests of GPT-2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.gpt2.net import Case

FILE = Path(__file__).with_name("deepspeed_answers.json")
BAD = (2, 7)  # micro-batches
# The quirks of DeepSpeed's scaler count: it grows the scale before it divides by it.
FP16 = {"dtype": "fp16", "profile": "deepspeed"}
CASES = {
    "fp32": Case(epochs=4, schedule=True, bad_passes=BAD),
    "bf16": Case("bf16", epochs=4, schedule=True, bad_passes=BAD),
    "fp16": Case(**FP16, epochs=4, schedule=True, bad_passes=BAD),
    "fp16-scale-too-large": Case(**FP16, schedule=True, epochs=3, power=22),
    "accumulation": Case(accumulation=3, passes=7, epochs=3, schedule=True, bad_passes=(4, 13)),
    # Above the norms of means, below those of sums: it shows the divisor of a window.
    "short-window": Case(
        accumulation=3, passes=7, epochs=2, clip=2.0, schedule=True, own_length=False,
        bad_passes=(3,),
    ),  # fmt: skip
    "clipped": Case(epochs=3, schedule=True, clip=0.5, bad_passes=(4,)),
    "fp16-clipped": Case(
        **FP16, accumulation=3, passes=5, epochs=4, schedule=True, clip=0.5, bad_passes=(7,)
    ),
}


def stand(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Asserts that schedule, rate and scale are the same after each round, and so are the skipped
    rounds."""
    skipped = 0
    for number, (said, told) in enumerate(zip(ours, theirs, strict=True)):
        assert said["position"] == told["position"], number
        if "before" in said:  # an engine shows the next round's values
            assert (said["before"], said["rate"]) == (told["before"], told["rate"]), number
        else:  # the others say what this round has used
            assert said["rate"] == told["before"], number
        assert said["scale"] == told["scale"], number
        assert said["applied"] == (told["skipped"] == skipped), number
        skipped = told["skipped"]
    assert 0 < skipped < len(ours)


def recorded() -> dict[str, list[dict[str, Any]]]:
    """By case: what DeepSpeed's script has said after each round."""
    return json.loads(FILE.read_text())["rounds"]
