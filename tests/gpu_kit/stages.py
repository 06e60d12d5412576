"""The stages of the kit in order of value, and how the minutes of a run are shared among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

# A stage that looks at its own clock ends by itself; one that does not is ended this much later.
GRACE_S = 5.0


@dataclasses.dataclass(frozen=True)
class Stage:
    """The module of this name. wants_s: its time at full size; least_s: with less it shows
    nothing."""

    name: str
    wants_s: float
    least_s: float


ALL = (
    Stage("facts", 15, 2),
    Stage("bits", 70, 15),
    Stage("order", 40, 20),
    Stage("speed", 45, 20),
    Stage("memory", 35, 15),
    Stage("nccl", 45, 10),
    Stage("peers", 200, 45),
    Stage("sanitizer", 30, 15),
)


def share(left: Sequence[Stage], seconds: float) -> float:
    """Seconds for the first of the remaining stages: more than it wants where there is time."""
    wanted = sum(stage.wants_s for stage in left)
    return left[0].wants_s * min(2.0, seconds / wanted) if wanted else seconds
