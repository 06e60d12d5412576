"""Where a trainer finds its servers and its seat: arguments, BALLAST_*, torchrun, defaults.

Comes from: ballast.torch, tests. Goes to: ballast.session. Pure functions of their arguments, apart
from the count of optimizers that took their job name from the environment.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ballast.errors import BadArgument

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:,\[\]]+):([0-9]{1,5})\Z")
_INIT_MODES = ("equal", "broadcast")

# Optimizers of this process per job name from the environment: the second of a script (a GAN's
# discriminator) gets the suffix ".2", since one name is one job. Equal scripts count equally.
_names_given: dict[str, int] = {}


@dataclasses.dataclass(frozen=True)
class JobConfig:
    """Everything but the tensors that attaching needs. Times in seconds."""

    endpoints: tuple[str, ...]
    job: str
    world_size: int
    rank: int
    max_grad_norm: float = 0.0  # 0: no clipping
    loss_scale: float = 1.0
    tile_elements: int = 65536
    extent_elements: int = 1048576
    init: str = "equal"
    attach_timeout: float = 600.0
    time_scale: float = 1.0


def resolve(
    *,
    endpoints: str | Sequence[str] | None = None,
    job: str | None = None,
    world_size: int | None = None,
    rank: int | None = None,
    max_grad_norm: float | None = None,
    loss_scale: float = 1.0,
    tile_elements: int | None = None,
    extent_elements: int | None = None,
    init: str = "equal",
    attach_timeout: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> JobConfig:
    """Resolves every setting: argument > BALLAST_* > torchrun's variables > default.

    Variables: BALLAST_ENDPOINTS, BALLAST_JOB, BALLAST_WORLD_SIZE, BALLAST_RANK (or BALLAST_SLOT),
    BALLAST_ATTACH_TIMEOUT, BALLAST_TIME_SCALE; torchrun's WORLD_SIZE, RANK, TORCHELASTIC_RUN_ID.
    max_grad_norm None, 0 and inf all mean: no clipping.
    Raises BadArgument naming the setting, where its value came from and what is allowed.
    """
    env = os.environ if environ is None else environ
    world = _world_size(world_size, env)
    seat = _rank(rank, world, env)
    tile, extent = _tiling(tile_elements, extent_elements)
    if init not in _INIT_MODES:
        raise BadArgument(f"init={init!r}: must be one of {', '.join(map(repr, _INIT_MODES))}")
    clip = 0.0 if max_grad_norm is None or max_grad_norm == math.inf else float(max_grad_norm)
    if not clip >= 0.0:
        raise BadArgument(f"max_grad_norm={max_grad_norm!r}: must be positive, or None for none")
    if not 0.0 < float(loss_scale) < math.inf:
        raise BadArgument(f"loss_scale={loss_scale!r}: must be positive and finite")
    return JobConfig(
        endpoints=_endpoints(endpoints, env),
        job=_job(job, world, env),
        world_size=world,
        rank=seat,
        max_grad_norm=clip,
        loss_scale=float(loss_scale),
        tile_elements=tile,
        extent_elements=extent,
        init=init,
        attach_timeout=_seconds(attach_timeout, "attach_timeout", "BALLAST_ATTACH_TIMEOUT", env),
        time_scale=_time_scale(env),
    )


def _endpoints(given: str | Sequence[str] | None, env: Mapping[str, str]) -> tuple[str, ...]:
    source = "endpoints"
    if given is None:
        source, given = "BALLAST_ENDPOINTS", env.get("BALLAST_ENDPOINTS", "")
    listed = re.split(r"[,\s]+", given.strip()) if isinstance(given, str) else list(given)
    listed = [e for e in listed if e]
    if not listed:
        raise BadArgument(
            "no Ballast server is known: pass endpoints=[\"host:port\"] or set BALLAST_ENDPOINTS. "
            "To try it on this machine, run the script as `ballast-run script.py`, or start a "
            "server with `ballastd --dev` and use the address it prints."
        )
    for endpoint in listed:
        match = _ENDPOINT.match(endpoint)
        if not match or not 0 < int(match.group(2)) < 65536:
            raise BadArgument(f"{source}: {endpoint!r} is not host:port")
    return tuple(dict.fromkeys(listed))


def _integer(text: str, source: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadArgument(f"{source}={text!r}: must be a whole number") from None


def _from_environment(env: Mapping[str, str], names: Sequence[str]) -> tuple[str, str]:
    for name in names:
        if env.get(name, "") != "":
            return name, env[name]
    return "", ""


def _world_size(given: int | None, env: Mapping[str, str]) -> int:
    source, text = ("world_size", str(given)) if given is not None else _from_environment(
        env, ("BALLAST_WORLD_SIZE", "WORLD_SIZE")
    )
    world = _integer(text, source) if source else 1
    if world < 1:
        raise BadArgument(f"{source}={world}: must be at least 1")
    return world


def _rank(given: int | None, world: int, env: Mapping[str, str]) -> int:
    source, text = ("rank", str(given)) if given is not None else _from_environment(
        env, ("BALLAST_RANK", "BALLAST_SLOT", "RANK")
    )
    if not source and world > 1:
        raise BadArgument(
            f"world size is {world} but this trainer's rank is not known: pass rank= or set "
            "BALLAST_RANK (torchrun and ballast-run set RANK)"
        )
    rank = _integer(text, source) if source else 0
    if not 0 <= rank < world:
        raise BadArgument(f"{source}={rank}: must be in 0..{world - 1} (world size {world})")
    return rank


def _job(given: str | None, world: int, env: Mapping[str, str]) -> str:
    if given is not None:
        return _checked_job(given, "job")
    if env.get("BALLAST_JOB"):
        return _numbered(_checked_job(env["BALLAST_JOB"], "BALLAST_JOB"))
    # torchrun without --rdzv-id calls every run "none".
    run = env.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        restarts = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        name = run if restarts in ("", "0") else f"{run}.r{restarts}"
        return _numbered(_checked_job(name, "TORCHELASTIC_RUN_ID"))
    if world > 1:
        raise BadArgument(
            f"world size is {world} but the job has no name that all trainers share: pass job= or "
            "set BALLAST_JOB"
        )
    return fresh_job_name(sys.argv[0] if sys.argv else "")


def _checked_job(name: str, source: str) -> str:
    if not isinstance(name, str) or not _JOB.match(name):
        raise BadArgument(
            f"{source}={name!r}: a job name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with a "
            "letter or digit"
        )
    return name


def _numbered(name: str) -> str:
    count = _names_given.get(name, 0) + 1
    _names_given[name] = count
    return name if count == 1 else _checked_job(f"{name}.{count}", "BALLAST_JOB")


def fresh_job_name(script: str) -> str:
    """A name no other job has: the script's stem and 48 random bits."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).lstrip("._-")[:64]
    return f"{stem or 'train'}-{secrets.token_hex(6)}"


def _tiling(tile: int | None, extent: int | None) -> tuple[int, int]:
    extent_elements = 1048576 if extent is None else int(extent)
    tile_elements = min(65536, extent_elements) if tile is None else int(tile)
    if tile_elements < 64 or tile_elements % 64:
        raise BadArgument(f"tile_elements={tile_elements}: must be a multiple of 64")
    if extent_elements < tile_elements or extent_elements % tile_elements:
        raise BadArgument(
            f"extent_elements={extent_elements}: must be a multiple of tile_elements "
            f"({tile_elements})"
        )
    return tile_elements, extent_elements


def _seconds(given: float | None, argument: str, name: str, env: Mapping[str, str]) -> float:
    source, text = (argument, str(given)) if given is not None else (name, env.get(name) or "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= 86400.0:
        raise BadArgument(f"{source}={text!r}: must be seconds, above 0 and at most 86400")
    return seconds


def _time_scale(env: Mapping[str, str]) -> float:
    text = env.get("BALLAST_TIME_SCALE") or "1"
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0.0 < scale <= 1000.0:
        raise BadArgument(f"BALLAST_TIME_SCALE={text!r}: must be a number in (0, 1000]")
    return scale
