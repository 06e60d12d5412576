"""The option collective=: a process group of torch, "nccl", or none; and the loss of a rank.

Comes from: ballast.config, .session, .torch.collective. Needs no torch. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast.errors import BadArgument, TrainerLost

NCCL = "nccl"
# How long a rank waits for the others with "nccl"; BALLAST_COLLECTIVE_TIMEOUT says otherwise.
TIMEOUT_S = 60.0
_TIMEOUT = "BALLAST_COLLECTIVE_TIMEOUT"

# The consequence where a process group of torch has lost a rank.
NEW_GROUP = (
    "The process group is stale: end the trainers, start them again with a new process group, and "
    'attach with resume="auto"'
)


def resolve(given: Mapping[str, Any]) -> tuple[Any, str]:
    """(the process group, "nccl" or None; how the job's gradients relate), from all options.

    Whether it is a group at all, and whose, is for ballast.torch.collective.check. BadArgument
    where another option does not go with it.
    """
    group, gradients = given["collective"], given["gradients"]
    if group is None or (isinstance(group, str) and group == "none"):
        return None, gradients
    if isinstance(group, str) and group != NCCL:
        raise BadArgument(
            f'collective={group!r}: must be "none", "nccl" or a process group of torch, such '
            "as torch.distributed.group.WORLD after init_process_group()"
        )
    if gradients != "local":
        raise BadArgument(
            f"collective= sums the gradients of all ranks, and gradients={gradients!r} says that "
            "they are equal already; give one of the two"
        )
    if given["variable_world"]:
        raise BadArgument(
            "collective= with variable_world=True: it has a fixed number of ranks; "
            "leave one of the two out"
        )
    return group, "scattered"


def timeout_s(env: Mapping[str, str]) -> float:
    """How long a rank waits for the others with "nccl", from the environment; BadArgument."""
    text = env.get(_TIMEOUT, "")
    try:
        seconds = float(text) if text else TIMEOUT_S
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 86400.0:
        raise BadArgument(f"{_TIMEOUT}={text!r}: must be seconds, from 0.001 to 86400")
    return seconds


def lost(
    ranks: list[int],
    epoch: int,
    waited_s: float,
    where: str,
    outcome: str,
    again: str = NEW_GROUP,
) -> TrainerLost:
    """The error for ranks that did not come; [] where it is not known which.

    where: in which call, of which round. outcome: what became of the round, as a sentence. again:
    what to do, as a sentence.
    """
    names = ", ".join(map(str, ranks))
    missing = f"ranks {names}" if len(ranks) > 1 else f"rank {names}" if ranks else "a rank"
    return TrainerLost(
        f"{missing} of epoch {epoch} did not arrive within {waited_s:.0f} s (in {where}). "
        f"{outcome}. {again}",
        code="UNAVAILABLE",
        slot=ranks[0] if len(ranks) == 1 else -1,
    )
