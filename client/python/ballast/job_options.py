"""A script's settings of its job: the keywords that every optimizer takes, and their defaults.

Comes from: ballast.torch. Goes to: ballast.config, which interprets them. Needs neither
torch nor typing_extensions. Pure functions.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, get_type_hints

from ballast.loss_scale import DynamicLossScale
from ballast.schedules import Schedule

_Call = TypeVar("_Call", bound=Callable[..., Any])


class JobOptions(TypedDict, total=False):
    """The options, each of which ballast.torch.AdamW documents.

    None means that the environment or the default decides, but for max_consecutive_skips.
    """

    endpoints: str | Sequence[str] | None
    job: str | None
    world_size: int | None
    rank: int | None
    max_grad_norm: float | None
    loss_scale: float | str | DynamicLossScale
    nonfinite: str
    max_consecutive_skips: int | None
    init: str
    extent_elements: int | None
    tile_elements: int | None
    attach_timeout: float | None
    durability: str | None
    reconnect_timeout: float | None
    resume: str | None
    variable_world: bool
    min_world: int | None
    device: str | None
    accumulation_steps: int
    lr_schedule: Schedule | None
    profile: str
    pinned_bytes: int
    gradients: str
    collective: Any
    tls_ca: str | os.PathLike[str] | None
    tls_cert: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    token_file: str | os.PathLike[str] | None


# The value of an option that the script does not give.
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(JobOptions.__annotations__),
    "loss_scale": 1.0, "nonfinite": "skip", "max_consecutive_skips": 100, "init": "equal",
    "variable_world": False, "accumulation_steps": 1, "profile": "exact",
    "pinned_bytes": 1 << 25, "gradients": "local", "collective": "none",
}  # fmt: skip


def refuse_unknown(options: Mapping[str, Any], called: str) -> None:
    """TypeError, as Python's for a call of `called`, for a keyword not in JobOptions."""
    for name in options:
        if name not in DEFAULTS:
            raise TypeError(f"{called} got an unexpected keyword argument {name!r}")


def spelled_out(call: _Call) -> _Call:
    """Decorates a function whose `**` parameter takes JobOptions; its calls stay as they are.

    inspect.signature() and help() then show each option with its type and default in place of that
    parameter. The annotations of `call` must be evaluable when it is defined.
    """
    signature = inspect.signature(call, eval_str=True)
    types, kind = get_type_hints(JobOptions), inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(name, kind, default=default, annotation=types[name])
        for name, default in DEFAULTS.items()
    ]
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    call.__signature__ = signature.replace(parameters=own + options)
    return call
