"""Where a trainer finds its servers and its seat: arguments, BALLAST_*, torchrun, defaults.

Comes from: ballast.torch, tests. Goes to: ballast.session. Pure functions of their arguments, apart
from what ballast.job_name counts.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ballast import collective_option, job_name, job_options, security, task_launchers
from ballast.errors import BadArgument
from ballast.foreign import refuse_deepspeed
from ballast.loss_scale import DynamicLossScale
from ballast.schedules import ALL as SCHEDULES, Schedule  # noqa: I001

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ballast.job_options import JobOptions

_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})\Z")
_CHOICES = {
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


@dataclasses.dataclass(frozen=True)
class JobConfig:
    """Everything but the tensors that attaching needs. Times in seconds."""

    endpoints: tuple[str, ...]
    job: str
    world_size: int
    rank: int
    max_grad_norm: float = 0.0  # 0: no clipping
    loss_scale: float | DynamicLossScale = 1.0
    nonfinite: str = "skip"
    max_consecutive_skips: int = 100  # 0: no limit
    tile_elements: int = 65536
    extent_elements: int = 1048576
    init: str = "equal"
    attach_timeout: float = 600.0
    time_scale: float = 1.0
    durability: str = DEFAULT_DURABILITY
    reconnect_timeout: float = 600.0
    resume: str = "never"
    variable_world: bool = False
    min_world: int = 1
    device: str = "auto"
    accumulation_steps: int = 1
    lr_schedule: Schedule | None = None
    profile: str = "exact"
    pinned_bytes: int = 1 << 25
    gradients: str = "local"  # "scattered" next to a
    collective: Any = None  # torch process group
    security: security.Security = security.Security()


def resolve(
    *, environ: Mapping[str, str] | None = None, **options: Unpack[JobOptions]
) -> JobConfig:
    """Resolves every setting: argument > BALLAST_* > torchrun's variables > default.

    Variables: BALLAST_ENDPOINTS, BALLAST_JOB, BALLAST_WORLD_SIZE, BALLAST_RANK (or BALLAST_SLOT),
    BALLAST_DURABILITY, BALLAST_DEVICE, BALLAST_RESUME, BALLAST_MIN_WORLD_SIZE,
    BALLAST_ATTACH_TIMEOUT, BALLAST_RECONNECT_TIMEOUT, BALLAST_TIME_SCALE, ballast.security's;
    torchrun's WORLD_SIZE, RANK, TORCHELASTIC_RUN_ID.
    max_grad_norm None, 0 and inf all mean: no clipping. max_consecutive_skips None: no limit.
    BadArgument names the setting, its source and the values it may have, or the variables of an
    srun or mpirun task without WORLD_SIZE. Unsupported: Accelerate starts DeepSpeed.
    """
    job_options.refuse_unknown(options, "resolve()")
    env = os.environ if environ is None else environ
    refuse_deepspeed(environ=env)
    given = {**job_options.DEFAULTS, **options}
    world = _world_size(given["world_size"], env)
    seat = _rank(given["rank"], world, env)
    tile, extent = _tiling(given["tile_elements"], given["extent_elements"])
    durability = _durability(given["durability"], env)
    resume = _resume(given["resume"], durability, env)
    _check_choices(given)
    group, gradients = collective_option.resolve(given)
    variable, pinned = given["variable_world"], _integer(given["pinned_bytes"], "pinned_bytes")
    return JobConfig(
        endpoints=endpoints_of(given["endpoints"], env),
        job=job_name.resolve(given["job"], world, resume != "never", env),
        world_size=world,
        rank=seat,
        max_grad_norm=_max_grad_norm(given["max_grad_norm"]),
        loss_scale=_loss_scale(given["loss_scale"], given["nonfinite"]),
        nonfinite=given["nonfinite"],
        max_consecutive_skips=_max_consecutive_skips(given["max_consecutive_skips"]),
        tile_elements=tile,
        extent_elements=extent,
        init=given["init"],
        attach_timeout=_timeout(given["attach_timeout"], "attach_timeout", env),
        time_scale=time_scale(env),
        durability=durability,
        reconnect_timeout=_timeout(given["reconnect_timeout"], "reconnect_timeout", env),
        resume=resume,
        variable_world=_variable_world(variable, durability),
        min_world=_min_world(given["min_world"], world, variable, env),
        device=_device(given["device"], durability, env),
        accumulation_steps=accumulation_steps(given["accumulation_steps"]),
        lr_schedule=_lr_schedule(given["lr_schedule"]),
        profile=given["profile"], pinned_bytes=pinned, gradients=gradients, collective=group,
        security=security.of(given, env),
    )


def _check_choices(given: Mapping[str, Any]) -> None:
    for name, allowed in _CHOICES.items():
        if (value := given[name]) not in allowed:
            raise BadArgument(f"{name}={value!r}: must be one of {', '.join(map(repr, allowed))}")


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


def _integer(value: Any, source: str) -> int:
    # Texts come from the environment; scripts hand theirs on, so they are good as arguments too.
    try:
        if isinstance(value, bool):
            raise TypeError
        return int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise BadArgument(f"{source}={value!r}: must be a whole number") from None


def _number(value: Any, source: str, good: Callable[[float], bool], what: str) -> float:
    # `good` says which numbers are allowed, and `what` tells people.
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: odd tensors
        number = math.nan
    if not good(number):
        raise BadArgument(f"{source}={value!r}: must be {what}")
    return number


def _max_grad_norm(given: float | None) -> float:
    what = "a positive number, or None for no clipping"
    norm = 0.0 if given is None else _number(given, "max_grad_norm", lambda n: n >= 0.0, what)
    return 0.0 if norm == math.inf else norm


def _loss_scale(given: float | str | DynamicLossScale, nonfinite: str) -> float | DynamicLossScale:
    dynamic = DynamicLossScale() if isinstance(given, str) and given == "dynamic" else given
    if isinstance(dynamic, DynamicLossScale):
        if nonfinite != "skip":
            raise BadArgument(
                f"nonfinite={nonfinite!r} with a dynamic loss_scale: it finds its way by rounds "
                'that overflow, which are skipped; leave nonfinite at "skip"'
            )
        return dynamic
    what = 'a positive, finite number, "dynamic" or a DynamicLossScale'
    return _number(given, "loss_scale", lambda n: 0.0 < n < math.inf, what)


def _lr_schedule(given: Schedule | None) -> Schedule | None:
    if given is None or type(given) in SCHEDULES.values():
        return given
    raise BadArgument(
        f"lr_schedule={given!r}: must be one of ballast.schedules ({', '.join(SCHEDULES)}); "
        "schedulers of torch are built on the optimizer instead"
    )


def _max_consecutive_skips(given: int | None) -> int:
    if given is None:
        return 0
    skips = _integer(given, "max_consecutive_skips")
    if not 1 <= skips <= SKIPS_MAX:
        raise BadArgument(
            f"max_consecutive_skips={skips}: must be in 1..{SKIPS_MAX}, or None for no limit; "
            "nonfinite=\"halt\" halts at the first"
        )
    return skips


def accumulation_steps(given: int) -> int:
    """`given` as micro-batches of a round; BadArgument when it is no whole number of at least 1."""
    steps = _integer(given, "accumulation_steps")
    if steps < 1:
        raise BadArgument(f"accumulation_steps={steps}: must be 1 or more")
    return steps


def _from_environment(env: Mapping[str, str], names: Sequence[str]) -> tuple[str, str]:
    for name in names:
        if env.get(name, "") != "":
            return name, env[name]
    return "", ""


def seat(env: Mapping[str, str]) -> tuple[int, int]:
    """(number of trainers, this one's rank), as resolve() finds them without arguments."""
    world = _world_size(None, env)
    return world, _rank(None, world, env)


def _world_size(given: int | None, env: Mapping[str, str]) -> int:
    source, value = ("world_size", given) if given is not None else _from_environment(
        env, ("BALLAST_WORLD_SIZE", "WORLD_SIZE")
    )
    world = _integer(value, source) if source else task_launchers.alone(env)
    if not 1 <= world <= WORLD_SIZE_MAX:
        raise BadArgument(f"{source}={world}: must be in 1..{WORLD_SIZE_MAX}")
    return world


def _rank(given: int | None, world: int, env: Mapping[str, str]) -> int:
    source, value = ("rank", given) if given is not None else _from_environment(
        env, ("BALLAST_RANK", "BALLAST_SLOT", "RANK")
    )
    if not source and world > 1:
        raise BadArgument(
            f"world size is {world} but this trainer's rank is not known: pass rank= or set "
            "BALLAST_RANK (torchrun and ballast-run set RANK)"
        )
    rank = _integer(value, source) if source else 0
    if not 0 <= rank < world:
        raise BadArgument(f"{source}={rank}: must be in 0..{world - 1} (world size {world})")
    return rank


def _tiling(tile: int | None, extent: int | None) -> tuple[int, int]:
    extent_elements = 1048576 if extent is None else _integer(extent, "extent_elements")
    # A default tile is no larger than its extent.
    tile_elements = min(65536, extent_elements) if tile is None else _integer(tile, "tile_elements")
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
    return tile_elements, extent_elements


def _timeout(given: float | None, name: str, env: Mapping[str, str]) -> float:
    # `name`: of the argument; that of its variable follows from it.
    source, value = (name, given) if given is not None else _from_environment(
        env, (f"BALLAST_{name.upper()}",)
    )
    what = f"seconds, above 0 and at most {TIMEOUT_MAX_S:g}"
    if not source:
        return 600.0
    return _number(value, source, lambda n: 0.0 < n <= TIMEOUT_MAX_S, what)


def _durability(given: str | None, env: Mapping[str, str]) -> str:
    source, value = ("durability", given) if given is not None else _from_environment(
        env, ("BALLAST_DURABILITY",)
    )
    if not source:
        return DEFAULT_DURABILITY
    if value not in DURABILITIES:
        raise BadArgument(
            f"{source}={value!r}: must be one of {', '.join(map(repr, DURABILITIES))}"
        )
    return value


def _resume(given: str | None, durability: str, env: Mapping[str, str]) -> str:
    source, value = ("resume", given) if given is not None else _from_environment(
        env, ("BALLAST_RESUME",)
    )
    if not source:
        return "never"
    if value not in RESUMES:
        raise BadArgument(f"{source}={value!r}: must be one of {', '.join(map(repr, RESUMES))}")
    if value == "never" or durability != "none":
        return value
    # The environment speaks to every optimizer of a script; one that keeps nothing is free to.
    if source == "BALLAST_RESUME" and value == "auto":
        return "never"
    raise BadArgument(
        f"{source}={value!r}: a job of durability \"none\" cannot be resumed; use "
        "durability=\"process\" (its servers may be killed) or \"power\" (and lose power)"
    )


def _device(given: str | None, durability: str, env: Mapping[str, str]) -> str:
    source, value = ("device", given) if given is not None else _from_environment(
        env, ("BALLAST_DEVICE",)
    )
    if not source:
        return "auto"
    if value not in DEVICES:
        raise BadArgument(f"{source}={value!r}: must be one of {', '.join(map(repr, DEVICES))}")
    if value != "nvme" or durability != "none":
        return value
    # The environment speaks to every optimizer of a script; one that keeps nothing is free to.
    if source == "BALLAST_DEVICE":
        return "auto"
    raise BadArgument(
        f"{source}={value!r}: a job of durability \"none\" has no files that its state could live "
        "in; use durability=\"process\" (its servers may be killed) or \"power\" (and lose power)"
    )


def _variable_world(given: bool, durability: str) -> bool:
    if not isinstance(given, bool):
        raise BadArgument(f"variable_world={given!r}: must be True or False")
    if given and durability == "none":
        raise BadArgument(
            'variable_world=True: a job of durability "none" ends with its first lost trainer; use '
            'durability="process" (its servers may be killed) or "power" (and lose power)'
        )
    return given


def _min_world(given: int | None, world: int, variable: bool, env: Mapping[str, str]) -> int:
    source, value = ("min_world", given) if given is not None else _from_environment(
        env, ("BALLAST_MIN_WORLD_SIZE",)
    )
    # The environment speaks to every optimizer of a script, also to one with a fixed world.
    if not source or (given is None and not variable):
        return 1
    least = _integer(value, source)
    if not variable:
        raise BadArgument(f"{source}={least}: only a variable_world may become smaller")
    if not 1 <= least <= world:
        raise BadArgument(f"{source}={least}: must be in 1..{world} (world size {world})")
    return least


def time_scale(env: Mapping[str, str]) -> float:
    """BALLAST_TIME_SCALE, or 1; BadArgument when it is no number in its range."""
    source, value = _from_environment(env, ("BALLAST_TIME_SCALE",))
    what = f"a number above 0 and at most {TIME_SCALE_MAX:g}"
    return _number(value, source, lambda n: 0.0 < n <= TIME_SCALE_MAX, what) if source else 1.0


def check_environment(env: Mapping[str, str]) -> None:
    """Raises BadArgument or Unsupported for variables wrong in every trainer of a launch.

    For launchers: one error before anything starts, not one per trainer.
    """
    refuse_deepspeed(environ=env)
    time_scale(env)
    security.of({}, env)
    _timeout(None, "attach_timeout", env)
    _timeout(None, "reconnect_timeout", env)
    _resume(None, _durability(None, env), env)
    _device(None, _durability(None, env), env)
