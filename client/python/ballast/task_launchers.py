"""Whether this process is one of several tasks of srun, mpirun and their like.

Comes from: ballast.config, ballast.run. Goes to: nothing. Such launchers set variables of their
own, and neither RANK nor WORLD_SIZE: without a look at them each task would train alone, in a job
of its own. Thread safety: pure functions of the environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ballast.errors import BadArgument

# Slurm's numbers of steps not started by the user's srun: extern, batch, interactive.
_SLURM_OWN_STEPS_MIN = 0xFFFFFFF0


@dataclasses.dataclass(frozen=True)
class _Launcher:
    """program: for texts. rank, local_rank: its variables. sizes: the first set one counts."""

    program: str
    rank: str
    sizes: tuple[str, ...]
    local_rank: str


_LAUNCHERS = (
    _Launcher("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",),
              "OMPI_COMM_WORLD_LOCAL_RANK"),
    _Launcher("MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",),
              "MV2_COMM_WORLD_LOCAL_RANK"),
    _Launcher("MVAPICH's mpirun", "MVP_COMM_WORLD_RANK", ("MVP_COMM_WORLD_SIZE",),
              "MVP_COMM_WORLD_LOCAL_RANK"),
    _Launcher("jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",), "JSM_NAMESPACE_LOCAL_RANK"),
    _Launcher("flux run", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",), "FLUX_TASK_LOCAL_ID"),
    _Launcher("PALS' mpiexec", "PALS_RANKID", ("PMI_SIZE", "PALS_SIZE"), "PALS_LOCAL_RANKID"),
    _Launcher("mpirun (PMI)", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID"),
    _Launcher("srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
              "SLURM_LOCALID"),
    _Launcher("prun (PMIx)", "PMIX_RANK", (), "PMIX_LOCAL_RANK"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Task:
    """A task among several. size: their number; None: the launcher does not say.

    size_name: the variable of the size, or "".
    """

    program: str
    rank: int
    size: int | None
    rank_name: str
    size_name: str
    local_rank_name: str

    def __str__(self) -> str:
        size = "" if self.size is None else f", {self.size_name}={self.size}"
        of = "of several" if self.size is None else f"of {self.size}"
        return f"task {self.rank} {of} of {self.program} ({self.rank_name}={self.rank}{size})"


def task(env: Mapping[str, str]) -> Task | None:
    """The task that this process is; None where no launcher started several.

    A shell or a script in an allocation of Slurm is no task: only srun starts some.
    """
    for launcher in _LAUNCHERS:
        rank = _whole(env.get(launcher.rank, ""))
        if rank is None or (launcher.program == "srun" and not (rank or _in_step(env))):
            continue
        size_name = next((name for name in launcher.sizes if env.get(name)), "")
        size = _whole(env.get(size_name, ""))
        if rank > 0 or (size is not None and size > 1):
            return Task(
                launcher.program, rank, size, launcher.rank, size_name, launcher.local_rank
            )
    return None


def alone(env: Mapping[str, str]) -> int:
    """The world of a process without WORLD_SIZE, which is 1.

    BadArgument, with what to set, where this process is one of several tasks. Ballast does not take
    the launcher's numbers itself: torch, Trainer and Accelerate would not know of them, and give
    every task the same data.
    """
    found = task(env)
    if found is None:
        return 1
    size = f"${found.size_name}" if found.size_name else "N"
    raise BadArgument(
        f"this process is {found}, and WORLD_SIZE is not set: each task would train alone. For one "
        f"job, set RANK=${found.rank_name} WORLD_SIZE={size} "
        f"LOCAL_RANK=${found.local_rank_name} in each task, and the same BALLAST_JOB in all; for a "
        "job of its own in each task, set BALLAST_WORLD_SIZE=1"
    )


def _in_step(env: Mapping[str, str]) -> bool:
    step = _whole(env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or "")
    return step is not None and step < _SLURM_OWN_STEPS_MIN


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None
