"""The option collective=: a process group of torch, or none; and a rank of it that is lost.

Comes from: ballast.config, .session, .torch.collective. Needs no torch. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast.errors import BadArgument, TrainerLost

_AGAIN = (
    "The process group is stale: end the trainers, start them again with a new process group, and "
    'attach with resume="auto"'
)


def resolve(given: Mapping[str, Any]) -> tuple[Any, str]:
    """(the process group or None, how the job's gradients relate), from all options.

    Whether it is a group at all, and whose, is for ballast.torch.collective.check. BadArgument
    where another option does not go with it.
    """
    group, gradients = given["collective"], given["gradients"]
    if group is None or (isinstance(group, str) and group == "none"):
        return None, gradients
    if isinstance(group, str):
        raise BadArgument(
            f'collective={group!r}: must be "none" or a process group of torch.distributed, such '
            "as torch.distributed.group.WORLD after init_process_group()"
        )
    if gradients != "local":
        raise BadArgument(
            f"collective= sums the gradients of all ranks, and gradients={gradients!r} says that "
            "they are equal already; give one of the two"
        )
    if given["variable_world"]:
        raise BadArgument(
            "collective= with variable_world=True: a process group has a fixed number of ranks; "
            "leave one of the two out"
        )
    return group, "scattered"


def lost(ranks: list[int], epoch: int, waited_s: float, where: str, outcome: str) -> TrainerLost:
    """The error for ranks that did not come; [] where it is not known which.

    where: in which call, of which round. outcome: what became of the round, as a sentence.
    """
    names = ", ".join(map(str, ranks))
    missing = f"ranks {names}" if len(ranks) > 1 else f"rank {names}" if ranks else "a rank"
    return TrainerLost(
        f"{missing} of epoch {epoch} did not arrive within {waited_s:.0f} s (in {where}). "
        f"{outcome}. {_AGAIN}",
        code="UNAVAILABLE",
        slot=ranks[0] if len(ranks) == 1 else -1,
    )
