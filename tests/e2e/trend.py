"""Whether a repeatedly sampled value rises without end.

Comes from: soak.py, test_soak.py. Goes to: nothing; pure functions.

A process that starts takes memory for a while: each thread's first use of malloc, buffers of new
sizes, gaps between long-lived blocks. That rise decays. A leak does not: it rises as fast in the
last third of the samples as in the second. The first third does not count. A few samples from the
middle of some work do not move a median.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far the median of the last third may lie above that of the second."""

    always: float
    # Divided by the number of samples: the rest of the rise after a start.
    start: float

    def of(self, samples: int) -> float:
        return self.always + self.start / samples


def rise(samples: Sequence[float]) -> float:
    """Median of the last third of the samples less that of the third before it.

    samples: three at least, at even distances.
    """
    third = len(samples) // 3
    last, before = samples[-third:], samples[-2 * third : -third]
    return statistics.median(last) - statistics.median(before)


def least_leak(samples: int, tolerance: Tolerance) -> float:
    """The slowest detected rise from sample to sample, if nothing else rises or falls."""
    return tolerance.of(samples) / (samples // 3)


def assert_no_trend(name: str, samples: Sequence[float], tolerance: Tolerance) -> None:
    rises, limit = rise(samples), tolerance.of(len(samples))
    assert rises <= limit, (
        f"{name}: the last third of {len(samples)} samples lies {rises:.0f} above the second, "
        f"the limit is {limit:.0f}"
    )
