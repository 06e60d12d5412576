"""Names of jobs: where a name comes from, and which names are good.

Comes from: ballast.config, ballast.run. Goes to: ballast.session. Pure functions of their
arguments, apart from the count of optimizers that took their name from the environment.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from ballast.errors import BadArgument

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")

# Optimizers of this process per job name from the environment: the second of a script (a GAN's
# discriminator) gets the suffix ".2", since one name is one job. Equal scripts count equally.
_names_given: dict[str, int] = {}

# Names that neither a script nor a user has chosen, so that no later run asks for them.
_made_up: set[str] = set()


def resolve(given: str | None, world: int, resumes: bool, env: Mapping[str, str]) -> str:
    """The name of the job: `given` > BALLAST_JOB > torchrun's run id > a fresh name.

    world: number of trainers; of several, all need one name. resumes: whether a job of that name
    may exist. Raises BadArgument for an invalid name, and where several trainers have none.
    """
    if given is not None:
        return check(given, "job")
    if env.get("BALLAST_JOB"):
        name = _numbered(check(env["BALLAST_JOB"], "BALLAST_JOB"))
        return _noted(name) if env["BALLAST_JOB"] == env.get("BALLAST_JOB_MADE_UP") else name
    # torchrun without --rdzv-id calls every run "none". When it starts all again, jobs that may not
    # resume need another name.
    run = env.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        restarts = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        name = run if resumes or restarts in ("", "0") else f"{run}.r{restarts}"
        return _numbered(check(name, "TORCHELASTIC_RUN_ID"))
    if world > 1:
        raise BadArgument(
            f"world size is {world} but the job has no name that all trainers share: pass job= or "
            "set BALLAST_JOB"
        )
    return _noted(fresh(sys.argv[0] if sys.argv else ""))


def is_made_up(name: str) -> bool:
    """Whether resolve() has returned `name` although neither script nor user chose it.

    ballast-run says with BALLAST_JOB_MADE_UP which name it has made up.
    """
    return name in _made_up


def _noted(name: str) -> str:
    _made_up.add(name)
    return name


def check(name: str, source: str) -> str:
    """`name`, or BadArgument naming `source` when no job can be called so."""
    if not isinstance(name, str) or not _JOB.match(name):
        raise BadArgument(
            f"{source}={name!r}: a job name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with a "
            "letter or digit"
        )
    return name


def _numbered(name: str) -> str:
    count = _names_given.get(name, 0) + 1
    _names_given[name] = count
    return name if count == 1 else check(f"{name}.{count}", "BALLAST_JOB")


def fresh(script: str) -> str:
    """A name no other job has: the script's stem and 48 random bits."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).lstrip("._-")[:64]
    return f"{stem or 'train'}-{secrets.token_hex(6)}"
