"""Runs scripts of scripts/ one after the other, each trainer in a process forked from this one.

So a test imports torch and transformers once, and a trainer may kill itself. Arguments: a plan, as
JSON in a file, and a folder. Of each part of the plan the folder gets, under its name, each
trainer's log (run.Log), its output, and codes.json. When a trainer fails, the others are killed.

Comes from: launch.py. Goes to: the scripts. Threads: none before it forks.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from ballast.launcher.trainers import free_port
from e2e.gpt2 import net, ways

PRELOADED = ("accelerate", "ballast.deepspeed", "ballast.hf.callback", "ballast.hf.factory",
             "transformers.trainer", "safetensors.torch")  # fmt: skip


def seat(rank: int, world: int, port: int) -> dict[str, str]:
    """As torchrun says it; nothing for one trainer alone."""
    if world == 1:
        return {}
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def trainer(part: dict[str, Any], folder: Path, rank: int, port: int) -> int:
    """One trainer; its exit code."""
    with open(folder / f"trainer-{rank}.log", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(seat(rank, part["world"], port), BALLAST_JOB=part["job"])
    try:
        ways.train(part["way"], part["ours"], net.Case.of(part["case"])).write(folder, rank)
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def run(part: dict[str, Any], folder: Path) -> list[int]:
    """All trainers of a part; their exit codes, -9 for killed ones."""
    folder.mkdir(parents=True)
    port = free_port()
    pids = []
    for rank in range(part["world"]):
        pid = os.fork()
        if pid == 0:
            os._exit(trainer(part, folder, rank, port))
        pids.append(pid)
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
        for other in pids if codes[pid] else ():
            if other not in codes:
                os.kill(other, signal.SIGKILL)
    return [codes[pid] for pid in pids]


def main(plan: Path, folder: Path) -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    for part in json.loads(plan.read_text()):
        into = folder / part["name"]
        codes = run(part, into)
        (into / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
