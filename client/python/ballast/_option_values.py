"""The checks of single job options: arguments, BALLAST_* and torchrun's variables, defaults.

Comes from: ballast.config. Goes to: nothing. Pure functions of their arguments. Each raises
BadArgument with the option's name or its variable's, its value, and the values it may have.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ballast import task_launchers
from ballast.errors import BadArgument
from ballast.loss_scale import DynamicLossScale
from ballast.schedules import ALL as SCHEDULES, Schedule  # noqa: I001

_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})\Z")
CHOICES = {
    "init": ("equal", "broadcast"), "nonfinite": ("skip", "halt"),
    "profile": ("exact", "deepspeed"), "gradients": ("local", "reduced", "auto"),
}  # fmt: skip
DURABILITIES = ("power", "process", "none")
DEVICES = ("auto", "cpu", "nvme")
RESUMES = ("never", "auto", "must")
DEFAULT_DURABILITY = "power"  # of a job that does not say what it wants
WORLD_SIZE_MAX = 65536  # bounds of the service: limits.max_slots at its highest, and the layout's
SKIPS_MAX = 2**32 - 1
TILE_ELEMENTS_MIN = 64
EXTENT_ELEMENTS_MAX = 16777216
TIMEOUT_MAX_S = 86400.0
TIME_SCALE_MAX = 1000.0


def choices(given: Mapping[str, Any]) -> dict[str, str]:
    """The options of CHOICES, by name."""
    return {name: one_of(allowed, name, given[name]) for name, allowed in CHOICES.items()}


def one_of(allowed: Sequence[str], source: str, value: Any) -> Any:
    """`value`; BadArgument by the name of its `source` unless it is allowed."""
    if value not in allowed:
        raise BadArgument(f"{source}={value!r}: must be one of {', '.join(map(repr, allowed))}")
    return value


def endpoints_of(given: str | Sequence[str] | None, env: Mapping[str, str]) -> tuple[str, ...]:
    """The servers of an argument, or else of the environment. BadArgument by name."""
    source = "endpoints"
    if given is None:
        source, given = "BALLAST_ENDPOINTS", env.get("BALLAST_ENDPOINTS", "")
    if isinstance(given, str):
        listed = re.split(r"[,\s]+", given.strip())
    else:
        try:
            listed = list(given)
        except TypeError:
            raise BadArgument(
                f"{source}={given!r}: must be \"host:port\" or a list of such texts"
            ) from None
    listed = [e for e in listed if e != ""]
    if not listed:
        raise BadArgument(
            "no Ballast server is known: pass endpoints=[\"host:port\"] or set BALLAST_ENDPOINTS. "
            "To try it on this machine, run the script as `ballast-run script.py`, or start a "
            "server with `ballastd --dev` and use the address it prints."
        )
    for endpoint in listed:
        match = _ENDPOINT.match(endpoint) if isinstance(endpoint, str) else None
        if not match or not 0 < int(match.group(2)) < 65536:
            raise BadArgument(
                f"{source}: {endpoint!r} is not host:port, such as \"127.0.0.1:7000\" (ports 1 to "
                "65535)"
            )
    return tuple(dict.fromkeys(listed))


def integer(value: Any, source: str) -> int:
    # Texts come from the environment; scripts hand theirs on, so they are good as arguments too.
    try:
        if isinstance(value, bool):
            raise TypeError
        return int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise BadArgument(f"{source}={value!r}: must be a whole number") from None


def number(value: Any, source: str, good: Callable[[float], bool], what: str) -> float:
    # `good` says which numbers are allowed, and `what` tells people.
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: odd tensors
        number = math.nan
    if not good(number):
        raise BadArgument(f"{source}={value!r}: must be {what}")
    return number


def max_grad_norm(given: float | None) -> float:
    what = "a positive number, or None for no clipping"
    norm = 0.0 if given is None else number(given, "max_grad_norm", lambda n: n >= 0.0, what)
    return 0.0 if norm == math.inf else norm


def loss_scale(given: float | str | DynamicLossScale, nonfinite: str) -> float | DynamicLossScale:
    dynamic = DynamicLossScale() if isinstance(given, str) and given == "dynamic" else given
    if isinstance(dynamic, DynamicLossScale):
        if nonfinite != "skip":
            raise BadArgument(
                f"nonfinite={nonfinite!r} with a dynamic loss_scale: it finds its way by rounds "
                'that overflow, which are skipped; leave nonfinite at "skip"'
            )
        return dynamic
    what = 'a positive, finite number, "dynamic" or a DynamicLossScale'
    return number(given, "loss_scale", lambda n: 0.0 < n < math.inf, what)


def lr_schedule(given: Schedule | None) -> Schedule | None:
    if given is None or type(given) in SCHEDULES.values():
        return given
    raise BadArgument(
        f"lr_schedule={given!r}: must be one of ballast.schedules ({', '.join(SCHEDULES)}); "
        "schedulers of torch are built on the optimizer instead"
    )


def max_consecutive_skips(given: int | None) -> int:
    if given is None:
        return 0
    skips = integer(given, "max_consecutive_skips")
    if not 1 <= skips <= SKIPS_MAX:
        raise BadArgument(
            f"max_consecutive_skips={skips}: must be in 1..{SKIPS_MAX}, or None for no limit; "
            "nonfinite=\"halt\" halts at the first"
        )
    return skips


def accumulation_steps(given: int) -> int:
    """`given` as micro-batches of a round; BadArgument when it is no whole number of at least 1."""
    steps = integer(given, "accumulation_steps")
    if steps < 1:
        raise BadArgument(f"accumulation_steps={steps}: must be 1 or more")
    return steps


def from_environment(env: Mapping[str, str], names: Sequence[str]) -> tuple[str, str]:
    for name in names:
        if env.get(name, "") != "":
            return name, env[name]
    return "", ""


def given_or(
    given: Any, name: str, env: Mapping[str, str], variables: Sequence[str]
) -> tuple[str, Any]:
    """(source, value): of the argument `name`, or else of the first variable that is set."""
    return (name, given) if given is not None else from_environment(env, variables)


def world_size(given: int | None, env: Mapping[str, str]) -> int:
    source, value = given_or(given, "world_size", env, ("BALLAST_WORLD_SIZE", "WORLD_SIZE"))
    world = integer(value, source) if source else task_launchers.alone(env)
    if not 1 <= world <= WORLD_SIZE_MAX:
        raise BadArgument(f"{source}={world}: must be in 1..{WORLD_SIZE_MAX}")
    return world


def rank(given: int | None, world: int, env: Mapping[str, str]) -> int:
    source, value = given_or(given, "rank", env, ("BALLAST_RANK", "BALLAST_SLOT", "RANK"))
    if not source and world > 1:
        raise BadArgument(
            f"world size is {world} but this trainer's rank is not known: pass rank= or set "
            "BALLAST_RANK (torchrun and ballast-run set RANK)"
        )
    rank = integer(value, source) if source else 0
    if not 0 <= rank < world:
        raise BadArgument(f"{source}={rank}: must be in 0..{world - 1} (world size {world})")
    return rank


def tiling(tile: int | None, extent: int | None) -> dict[str, Any]:
    """Both options, by name."""
    extent_elements = 1048576 if extent is None else integer(extent, "extent_elements")
    # A default tile is no larger than its extent.
    tile_elements = min(65536, extent_elements) if tile is None else integer(tile, "tile_elements")
    for given, name, elements in (
        (extent, "extent_elements", extent_elements),
        (tile, "tile_elements", tile_elements),
    ):
        if given is not None and (
            not TILE_ELEMENTS_MIN <= elements <= EXTENT_ELEMENTS_MAX or elements % TILE_ELEMENTS_MIN
        ):
            raise BadArgument(
                f"{name}={elements}: must be a multiple of {TILE_ELEMENTS_MIN}, at most "
                f"{EXTENT_ELEMENTS_MAX}"
            )
    if extent_elements % tile_elements:
        blamed = f"tile_elements={tile_elements}, extent_elements={extent_elements}"
        raise BadArgument(f"{blamed}: the second must be a multiple of the first")
    return {"tile_elements": tile_elements, "extent_elements": extent_elements}


def timeout(given: float | None, name: str, env: Mapping[str, str]) -> float:
    # `name`: of the argument; that of its variable follows from it.
    source, value = given_or(given, name, env, (f"BALLAST_{name.upper()}",))
    what = f"seconds, above 0 and at most {TIMEOUT_MAX_S:g}"
    if not source:
        return 600.0
    return number(value, source, lambda n: 0.0 < n <= TIMEOUT_MAX_S, what)


def durability(given: str | None, env: Mapping[str, str]) -> str:
    source, value = given_or(given, "durability", env, ("BALLAST_DURABILITY",))
    if not source:
        return DEFAULT_DURABILITY
    return one_of(DURABILITIES, source, value)


def resume(given: str | None, durability: str, env: Mapping[str, str]) -> str:
    source, value = given_or(given, "resume", env, ("BALLAST_RESUME",))
    if not source:
        return "never"
    one_of(RESUMES, source, value)
    if value == "never" or durability != "none":
        return value
    # The environment speaks to every optimizer of a script; one that keeps nothing is free to.
    if source == "BALLAST_RESUME" and value == "auto":
        return "never"
    raise BadArgument(
        f"{source}={value!r}: a job of durability \"none\" cannot be resumed; use "
        "durability=\"process\" (its servers may be killed) or \"power\" (and lose power)"
    )


def device(given: str | None, durability: str, env: Mapping[str, str]) -> str:
    source, value = given_or(given, "device", env, ("BALLAST_DEVICE",))
    if not source:
        return "auto"
    one_of(DEVICES, source, value)
    if value != "nvme" or durability != "none":
        return value
    # The environment speaks to every optimizer of a script; one that keeps nothing is free to.
    if source == "BALLAST_DEVICE":
        return "auto"
    raise BadArgument(
        f"{source}={value!r}: a job of durability \"none\" has no files that its state could live "
        "in; use durability=\"process\" (its servers may be killed) or \"power\" (and lose power)"
    )


def variable_world(given: bool, durability: str) -> bool:
    if not isinstance(given, bool):
        raise BadArgument(f"variable_world={given!r}: must be True or False")
    if given and durability == "none":
        raise BadArgument(
            'variable_world=True: a job of durability "none" ends with its first lost trainer; use '
            'durability="process" (its servers may be killed) or "power" (and lose power)'
        )
    return given


def min_world(given: int | None, world: int, variable: bool, env: Mapping[str, str]) -> int:
    source, value = given_or(given, "min_world", env, ("BALLAST_MIN_WORLD_SIZE",))
    # The environment speaks to every optimizer of a script, also to one with a fixed world.
    if not source or (given is None and not variable):
        return 1
    least = integer(value, source)
    if not variable:
        raise BadArgument(f"{source}={least}: only a variable_world may become smaller")
    if not 1 <= least <= world:
        raise BadArgument(f"{source}={least}: must be in 1..{world} (world size {world})")
    return least


def time_scale(env: Mapping[str, str]) -> float:
    """BALLAST_TIME_SCALE, or 1; BadArgument when it is no number in its range."""
    source, value = from_environment(env, ("BALLAST_TIME_SCALE",))
    what = f"a number above 0 and at most {TIME_SCALE_MAX:g}"
    return number(value, source, lambda n: 0.0 < n <= TIME_SCALE_MAX, what) if source else 1.0
