"""The events that a job reports, by DeepSpeed's tags.

Comes from: training loops. Goes to: ballast.monitor. Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ballast.errors import BadArgument

# Tag, value, and the samples that all trainers have had so far, those of skipped rounds included.
Event = tuple[str, float, int]

_SAMPLES = "Train/Samples/"
# DeepSpeed's timers of a step, in its order.
TIMERS = ("forward", "backward", "backward_inner", "backward_allreduce", "step")


def round_events(samples: int, lr: float, loss_scale: float | None = None) -> list[Event]:
    """The events of each round. loss_scale: with fp16 only."""
    events = [(f"{_SAMPLES}lr", lr, samples)]
    if loss_scale is not None:
        events.append((f"{_SAMPLES}loss_scale", loss_scale, samples))
    return events


def timer_events(samples: int, milliseconds: Mapping[str, float]) -> list[Event]:
    """What wall_clock_breakdown measures. milliseconds: by name, DeepSpeed's TIMERS or others."""
    names = [*TIMERS, *(name for name in milliseconds if name not in TIMERS)]
    return [
        (f"{_SAMPLES}elapsed_time_ms_{name}", milliseconds[name], samples)
        for name in names
        if name in milliseconds
    ]


def checked(events: Iterable[Any]) -> list[Event]:
    """The events with plain numbers. BadArgument for an invalid one."""
    return [_checked(event) for event in events]


def _checked(event: Any) -> Event:
    if not isinstance(event, (tuple, list)) or len(event) != 3:
        raise BadArgument(f"an event is (tag, value, samples), not {event!r}")
    tag, value, samples = event
    if not isinstance(tag, str) or not tag or "\0" in tag:
        raise BadArgument(f"the tag of an event is text, not {tag!r}")
    return tag, _number(tag, value), int(_number(tag, samples))


def _number(tag: str, value: Any) -> Any:
    """A number, or the only element of a tensor or array."""
    if isinstance(value, (int, float)):
        return value
    try:
        return value.item()
    except (AttributeError, RuntimeError, ValueError):
        raise BadArgument(f"{tag}: a {type(value).__name__} is no number") from None
