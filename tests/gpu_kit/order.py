"""Stage "order": no bit is early or late, whatever a script does between two rounds.

Comes from: the runner. Goes to: rounds with late kernels (streams.py), CUDA graphs and memory
pressure (graphs.py), killed trainers (killed_trainer.py), and a CUDA part with planted
faults (faults.py), each of which has to be noticed.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import time
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

# One algorithm for a product of matrices, inside a graph and outside of it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
from ballast.config import time_scale  # noqa: E402

from gpu_kit import checks, faults, graphs, killed_trainer, place, streams  # noqa: E402
from gpu_kit.models import differing_bits  # noqa: E402

ROUNDS, REHEARSED = 12, 4
FAULT_ROUNDS = 3
CHILD_S = 30 * time_scale(os.environ)  # until an unfinished child is given up
ORDER_FAULTS = ("early_gradient", "early_hand_over", "early_read")
LOST = "lost_unpack=3"


def rounds_for(stage: checks.Stage, where: place.RealGpu | place.Standin) -> int:
    """Of a run in this process: fewer where little time is left."""
    return max(2, min(ROUNDS if where.real else REHEARSED, int(stage.left() / 5)))


class Children:
    """Processes forked from one with torch imported and no GPU used."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["gpu_kit.killed_trainer", "gpu_kit.graphs"])
        forkserver.ensure_running()

    def start(self, target: object, *arguments: object) -> ForkServerProcess:
        child = self._context.Process(target=target, args=arguments, daemon=True)
        child.start()
        return child


def ended(children: list[ForkServerProcess], seconds: float) -> list[int | None]:
    """Exit codes; of those that take longer, which are killed, None."""
    until = time.monotonic() + seconds
    codes = []
    for child in children:
        child.join(max(0.0, until - time.monotonic()))
        codes.append(child.exitcode)
        if child.exitcode is None:
            child.kill()
            child.join()
    return codes


def late_rounds(stage: checks.Stage, where: place.RealGpu | place.Standin,
                endpoints: list[str]) -> None:  # fmt: skip
    for way in streams.WAYS if where.real else streams.WAYS[:1]:
        name = f"late gradients and late readers on {way}"
        with stage.trial(name):
            rounds = rounds_for(stage, where)
            seen = streams.late_and_early(where, endpoints, way, rounds)
            stage.check(
                name, seen.bits == 0,
                f"{seen} after {seen.rounds} rounds",
                rounds=seen.rounds, differing_bits=seen.bits,
            )  # fmt: skip
    if not where.real:
        stage.not_run("side streams", "the stand-in has no streams of torch")


def graph_rounds(stage: checks.Stage, where: place.RealGpu | place.Standin,
                 endpoints: list[str]) -> None:  # fmt: skip
    name, refused = "a CUDA graph replayed between steps", "step() and attach() in a capture"
    if not where.real:
        for each in (name, refused):
            stage.not_run(each, "the stand-in has no CUDA graphs")
        return
    with stage.trial(name):
        rounds = rounds_for(stage, where)
        found = graphs.replay(where, endpoints, rounds)
        stage.check(
            name, found.host == 0 and found.eager == 0,
            f"{found.host} bits differ from the host's, {found.eager} from a run without a graph",
            rounds=rounds, differing_bits=found.host + found.eager,
        )  # fmt: skip
        stage.check(refused, all("captures a CUDA graph" in said for said in found.refused),
                    " | ".join(said or "not refused" for said in found.refused))  # fmt: skip


def memory_rounds(stage: checks.Stage, where: place.RealGpu | place.Standin,
                  endpoints: list[str]) -> None:  # fmt: skip
    name = "memory pressure, and backward passes that run out of memory"
    with stage.trial(name):
        rounds = rounds_for(stage, where)
        bits, failed = graphs.short_of_memory(where, endpoints, rounds)
        stage.check(
            name, bits == 0 and failed > 0,
            f"{bits} bits differ after {rounds} rounds, of which {failed} ran out of memory once",
            rounds=rounds, differing_bits=bits, out_of_memory=failed,
        )  # fmt: skip


def with_fault(fault: str, cpu: bool, endpoints: list[str], said: Path) -> None:
    """In a child: rounds over a CUDA part with the fault; writes the observations."""
    torch.set_num_threads(1)
    where = place.chosen(cpu)
    faults.plant(fault)
    try:
        seen = streams.late_and_early(where, endpoints, streams.WAYS[0], FAULT_ROUNDS)
        result = {"bits": seen.bits, "said": str(seen)}
    except Exception as error:
        result = {"bits": 0, "said": f"{type(error).__name__}: {str(error)[:300]}", "error": True}
    fresh = said.with_suffix(".new")
    fresh.write_text(json.dumps(result))
    fresh.replace(said)


def planted(stage: checks.Stage, children: Children, endpoints: list[str]) -> None:
    """Each fault has to be noticed; without one the same rounds have to pass."""
    kinds = ["", LOST] if stage.cpu else ["", LOST, *ORDER_FAULTS]
    running = []
    for i, fault in enumerate(kinds):
        said = stage.folder / f"fault-{i}.json"
        child = children.start(with_fault, fault, stage.cpu, endpoints, said)
        running.append((fault, child, said))
    enough = stage.left() > CHILD_S
    codes = ended([child for _, child, _ in running], time_for_child(stage))
    for (fault, _, said), code in zip(running, codes, strict=True):
        name = f"the fault {fault} is noticed" if fault else "the faulty CUDA part without a fault"
        if code is None and not enough:
            stage.not_run(name, "it did not end within the time of this stage")
            continue
        if code != 0 or not said.exists():
            stage.check(name, False, f"the child ended with {code} and said nothing")
            continue
        found = json.loads(said.read_text())
        noticed = found["bits"] > 0
        right = noticed == bool(fault) and "error" not in found
        stage.check(name, right, found["said"], differing_bits=found["bits"])
    if stage.cpu:
        for fault in ORDER_FAULTS:
            stage.not_run(f"the fault {fault} is noticed", "nothing is late on the stand-in")


def calm_job(children: Children, seat: killed_trainer.Seat) -> list[ForkServerProcess]:
    calm = dataclasses.replace(
        seat, job=place.fresh_job("calm"), folder=seat.folder / "calm", strikes={}
    )
    return [
        children.start(killed_trainer.train, dataclasses.replace(calm, rank=rank))
        for rank in (0, 1)
    ]


def killed(stage: checks.Stage, children: Children, endpoints: list[str]) -> None:
    """Rank 0 is killed once in each phase, and started again; the bits are a calm job's."""
    folder = stage.folder / "killed"
    (folder / "calm").mkdir(parents=True)
    strikes = {2 * i + 3: phase for i, phase in enumerate(killed_trainer.PHASES)}
    job = place.fresh_job("killed")
    seats = [
        killed_trainer.Seat(endpoints, job, rank, stage.cpu, folder, strikes) for rank in (0, 1)
    ]
    calm = calm_job(children, seats[0])
    stays = children.start(killed_trainer.train, seats[1])
    for number, phase in strikes.items():
        code, = ended([children.start(killed_trainer.train, seats[0])], time_for_child(stage))
        name = f"a trainer is killed {phase}, and starts again"
        if code is None and stage.left() < CHILD_S:
            stage.not_run(name, "it did not end within the time of this stage")
            ended([stays, *calm], 0)
            return
        there = code == -signal.SIGKILL and seats[0].struck(number).exists()
        if not stage.check(name, there, f"it ended with {code} in round {number}"):
            ended([stays, *calm], 0)
            return
    last = children.start(killed_trainer.train, seats[0])
    codes = ended([last, stays, *calm], time_for_child(stage))
    bits = -1 if codes != [0, 0, 0, 0] else disturbed_bits(folder)
    stage.check(
        "the bits after the kills are those of a calm job", bits == 0,
        f"trainers ended with {codes}; {bits} bits differ", differing_bits=bits,
    )  # fmt: skip


def time_for_child(stage: checks.Stage) -> float:
    return max(1.0, min(CHILD_S, stage.left() - 3))


def disturbed_bits(folder: Path) -> int:
    """Of weights and state, between the disturbed job and the calm one."""
    bits = 0
    for rank in (0, 1):
        ours = torch.load(folder / f"state-{rank}")
        theirs = torch.load(folder / "calm" / f"state-{rank}")
        if ours["round"] != theirs["round"] or ours["state"].keys() != theirs["state"].keys():
            raise ValueError(f"rank {rank} has another state")
        bits += sum(map(differing_bits, ours["weights"], theirs["weights"]))
        for i, arrays in ours["state"].items():
            bits += sum(differing_bits(arrays[key], theirs["state"][i][key]) for key in arrays)
    return bits


def run(stage: checks.Stage) -> None:
    children = Children()
    torch.set_num_threads(1)
    where = place.chosen(stage.cpu)
    with place.servers(stage.folder / "servers", 2) as servers:
        endpoints = servers.addresses
        late_rounds(stage, where, endpoints)
        graph_rounds(stage, where, endpoints)
        memory_rounds(stage, where, endpoints)
        # Those that take processes of their own.
        for name, call, least in (
            ("planted faults", planted, 10.0), ("trainers that are killed", killed, 20.0)
        ):  # fmt: skip
            if not faults.built():
                stage.not_run(name, "libballast_cuda_faulty.so is not there")
            elif stage.left() < least:
                stage.not_run(name, f"{stage.left():.0f} s were left")
            else:
                with stage.trial(name):
                    call(stage, children, endpoints)


if __name__ == "__main__":
    checks.main("order", run)
