"""Our schedules and loss scaler against DeepSpeed's own classes, as recorded: every double equal.

record_policy_vectors.py says how the answers were recorded, and shows what differs.
"""

from __future__ import annotations

import pytest
from policy_cases import CASES, DRIVER, VECTORS, cases, digest, our_answers

BATCH = 500


def test_ten_thousand_configurations_give_deepspeeds_doubles() -> None:
    if not DRIVER.exists():
        pytest.skip(f"{DRIVER} is not built")
    recorded = [line for line in VECTORS.read_text().splitlines() if not line.startswith("#")]
    assert len(recorded) == CASES
    asked = list(cases())
    differing = []
    for start in range(0, CASES, BATCH):
        batch = asked[start : start + BATCH]
        answers = [digest(values) for values in our_answers(batch)]
        assert len(answers) == len(batch)
        differing += [
            start + place
            for place, answer in enumerate(answers)
            if answer != recorded[start + place]
        ]
    shown = [f"{number}: {asked[number].line()[:300]}" for number in differing[:5]]
    assert not differing, f"{len(differing)} cases differ, among them {shown}"
