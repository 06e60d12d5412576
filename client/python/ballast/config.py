"""A trainer's job options, and their values: arguments, BALLAST_*, torchrun, defaults.

JobOptions has the keywords that every optimizer takes, JobConfig the values in effect, and resolve
leads from one to the other. Fields of JobConfig go to the servers by their names.
Comes from: ballast.torch, tests. Goes to: ballast.session. Needs neither torch nor
typing_extensions. Pure functions of their arguments, apart from what ballast.job_name counts.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, get_type_hints

from ballast import _option_values as values, collective_option, job_name, security
from ballast._option_values import accumulation_steps, endpoints_of, time_scale
from ballast._launcher_conflicts import refuse_deepspeed
from ballast.loss_scale import DynamicLossScale
from ballast.schedules import Schedule

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Call = TypeVar("_Call", bound=Callable[..., Any])
_HERE = {"here": True}  # fields that the trainer itself uses; they have no place in the module


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
    durability: str = values.DEFAULT_DURABILITY
    reconnect_timeout: float = 600.0
    resume: str = "never"
    variable_world: bool = False
    min_world: int = 1
    device: str = "auto"
    accumulation_steps: int = dataclasses.field(default=1, metadata=_HERE)
    lr_schedule: Schedule | None = dataclasses.field(default=None, metadata=_HERE)
    profile: str = "exact"
    pinned_bytes: int = dataclasses.field(default=1 << 25, metadata=_HERE)
    gradients: str = "local"  # "scattered" only with collective=
    # A process group of torch.
    collective: Any = dataclasses.field(default=None, metadata=_HERE)
    security: security.Security = security.Security()

    def for_core(self) -> dict[str, Any]:
        """The fields that the extension module's JobOptions has, by their names; plain values."""
        sent = [f.name for f in dataclasses.fields(self) if not f.metadata.get("here")]
        given = {name: getattr(self, name) for name in sent}
        return {
            name: dataclasses.astuple(value) if dataclasses.is_dataclass(value) else value
            for name, value in given.items()
        }


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
    refuse_unknown(options, "resolve()")
    env = os.environ if environ is None else environ
    refuse_deepspeed(environ=env)
    given = {**DEFAULTS, **options}
    world = values.world_size(given["world_size"], env)
    seat = values.rank(given["rank"], world, env)
    checked = values.tiling(given["tile_elements"], given["extent_elements"])
    durability = values.durability(given["durability"], env)
    resume = values.resume(given["resume"], durability, env)
    checked |= values.choices(given)
    checked["collective"], checked["gradients"] = collective_option.resolve(given)
    checked["pinned_bytes"] = values.integer(given["pinned_bytes"], "pinned_bytes")
    variable = given["variable_world"]
    return JobConfig(
        endpoints=endpoints_of(given["endpoints"], env),
        job=job_name.resolve(given["job"], world, resume != "never", env),
        world_size=world,
        rank=seat,
        max_grad_norm=values.max_grad_norm(given["max_grad_norm"]),
        loss_scale=values.loss_scale(given["loss_scale"], given["nonfinite"]),
        max_consecutive_skips=values.max_consecutive_skips(given["max_consecutive_skips"]),
        attach_timeout=values.timeout(given["attach_timeout"], "attach_timeout", env),
        time_scale=time_scale(env),
        durability=durability,
        reconnect_timeout=values.timeout(given["reconnect_timeout"], "reconnect_timeout", env),
        resume=resume,
        variable_world=values.variable_world(variable, durability),
        min_world=values.min_world(given["min_world"], world, variable, env),
        device=values.device(given["device"], durability, env),
        accumulation_steps=accumulation_steps(given["accumulation_steps"]),
        lr_schedule=values.lr_schedule(given["lr_schedule"]),
        security=security.of(given, env),
        **checked,
    )


def seat(env: Mapping[str, str]) -> tuple[int, int]:
    """(number of trainers, this one's rank), as resolve() finds them without arguments."""
    world = values.world_size(None, env)
    return world, values.rank(None, world, env)


def check_environment(env: Mapping[str, str]) -> None:
    """Raises BadArgument or Unsupported for variables wrong in every trainer of a launch.

    For launchers: one error before anything starts, not one per trainer.
    """
    refuse_deepspeed(environ=env)
    time_scale(env)
    security.of({}, env)
    values.timeout(None, "attach_timeout", env)
    values.timeout(None, "reconnect_timeout", env)
    durability = values.durability(None, env)
    values.resume(None, durability, env)
    values.device(None, durability, env)
