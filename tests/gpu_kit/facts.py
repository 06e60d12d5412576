"""Stage facts: the properties of this host that decide the possible results of the other stages.

Comes from: the runner. Goes to: checks of state "seen"; nothing here judges speed.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from pathlib import Path

import torch
from ballast import backend

from gpu_kit import checks

SMI = ("name", "driver_version", "memory.total", "pcie.link.gen.current", "pcie.link.width.current")


def output(*command: str) -> str:
    """The command's output, or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"none ({error})"
    return done.stdout.strip() or f"none (exit code {done.returncode})"


def first_line(pattern: str, path: str) -> str:
    """The text after the colon of the first line that begins with the pattern."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(pattern)), "?")


def host(stage: checks.Stage) -> None:
    libc = " ".join(platform.libc_ver())
    stage.seen("host", (
        f"{first_line('model name', '/proc/cpuinfo')}, {os.cpu_count()} processors, "
        f"{first_line('MemTotal', '/proc/meminfo')}, Linux {platform.release()}, {libc}, "
        f"Python {platform.python_version()}"))  # fmt: skip
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    said = "no limit" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KiB"
    stage.seen("locked memory (ulimit -l)", said)
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    stage.seen("NUMA", f"{nodes} nodes")
    free = shutil.disk_usage(stage.folder).free / 2**30
    stage.measured("free disk of the work folder", free, "GiB")


def gpu(stage: checks.Stage) -> None:
    said = output("nvidia-smi", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader")
    stage.seen("GPU: name, driver, memory, PCIe generation and lanes", said)
    for program in ("nvcc", "compute-sanitizer", "ncu"):
        stage.seen(program, output(program, "--version").split("\n")[-1])
    stage.check("torch sees the GPU", torch.cuda.is_available(), (
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"))  # fmt: skip


def run(stage: checks.Stage) -> None:
    host(stage)
    if stage.cpu:
        stage.not_run("GPU", "a rehearsal on the stand-in")
        stage.seen("torch", torch.__version__)
    else:
        gpu(stage)
    with stage.trial("the client's extension module"):
        stage.check("the client's extension module", True, Path(backend.core().__file__).name)


if __name__ == "__main__":
    checks.main("facts", run)
