"""The stages of the kit in order of value, and how the minutes of a run are shared among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

# A stage that looks at its own clock ends by itself; one that does not is ended this much later.
GRACE_S = 5.0


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage. wants_s: what it takes at its full size; least_s: with less it shows nothing."""

    name: str
    module: str
    wants_s: float
    least_s: float
    shows: str


ALL = (
    Stage("facts", "facts", 15, 2, "what this host is"),
    Stage("bits", "bits", 70, 15, "the bits of the CPU, in every form a tensor has"),
    Stage("order", "order", 40, 20, "order under stress, and planted faults that must be noticed"),
    Stage("speed", "speed", 45, 20, "copies and steps as shares of the device's own copies"),
    Stage("memory", "memory", 35, 15, "bytes of GPU memory per parameter"),
    Stage("nccl", "nccl", 45, 10, "NCCL itself"),
    Stage("peers", "peers", 200, 45, "tokens per second and memory against what users have now"),
    Stage("sanitizer", "sanitizer", 30, 15, "compute-sanitizer over the device tests"),
)


def share(left: Sequence[Stage], seconds: float) -> float:
    """Seconds for the first of the stages that are left: more than it wants where there is time."""
    wanted = sum(stage.wants_s for stage in left)
    return left[0].wants_s * min(2.0, seconds / wanted) if wanted else seconds
