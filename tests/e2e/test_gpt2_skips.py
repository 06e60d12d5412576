"""Skipped rounds of the three scripts: schedule, rates and scale equal DeepSpeed's.

DeepSpeed's answers are recorded: gpt2/record_deepspeed.py.
"""

from __future__ import annotations

import pytest

from e2e.gpt2 import answers, ways
from e2e.test_gpt2_three_ways import ROUNDING, train  # noqa: F401  (a fixture)

OFTEN = ("fp32", "fp16", "fp16-scale-too-large", "short-window", "fp16-clipped")
PARAMS = [
    pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.long]) for name in answers.CASES
]


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("way", ways.WAYS)
def test_skips_leave_everything_where_deepspeed_leaves_it(train, way, name):  # noqa: F811
    case, theirs = answers.CASES[name], answers.recorded()[name]
    ours = train(way, case)
    answers.stand(ours.rounds, theirs)
    for number, (said, told) in enumerate(zip(ours.rounds, theirs)):
        # Trainer divides a short window's loss by its own length, and logs 0 for an infinite one.
        if told["loss"] is not None and (way != "trainer" or case.own_length):
            assert said["loss"] == pytest.approx(told["loss"], rel=ROUNDING[case.dtype]), number
