"""NCCL itself: communicators that begin, sum, end, and begin again after errors.

One GPU shows one rank, and that two ranks on it are refused; several show ranks over all of them.
A rehearsal uses the fake NCCL of the tests, on memory of the host.
Comes from: the runner. Goes to: nccl_links.py, and nccl_ranks.py in processes of their own.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gpu_kit import checks, nccl_links, nccl_ranks, place

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDS = 4
TOGETHER = "all were aborted together"


def run(stage: checks.Stage) -> None:
    why = nccl_links.rehearse() if stage.cpu else ""
    if why:
        stage.not_run("all of NCCL", why)
        return
    if not stage.cpu:
        place.RealGpu()
    with place.servers(stage.folder / "servers", 1) as servers, contextlib.ExitStack() as ends:
        # Processes take seconds to start: these do so while the first checks run.
        early = Early(stage, ",".join(servers.addresses))
        ends.callback(early.end)
        with stage.trial("the library"):
            links = nccl_links.Links(stage.cpu)
            the_library(stage, links)
            for check in (one_rank, stale, together, a_rank_that_never_comes):
                with stage.trial(check.__name__.replace("_", " ")):
                    check(stage, links)
            with stage.trial("a killed process"):
                a_killed_process(stage, links, early.alone)
            with stage.trial("a job of one rank"):
                a_job(stage, links, early.endpoints)
        with stage.trial("two ranks on one GPU"):
            two_on_one(stage, early)
        over_all_gpus(stage, early.endpoints)


class Early:
    """Processes that begin before their checks. job: of the two ranks on one GPU."""

    def __init__(self, stage: checks.Stage, endpoints: str) -> None:
        self.endpoints, self.job = endpoints, place.fresh_job("two")
        plan = "0:init:1:fail,1:init:1:fail"
        self.alone = nccl_ranks.started(stage.cpu, "alone")
        self.refused = [
            nccl_ranks.started(stage.cpu, "refused", endpoints, self.job, rank, plan=plan)
            for rank in range(2)
        ]

    def end(self) -> None:
        for child in (self.alone, *self.refused):
            child.kill()
            child.wait()
            child.stdout.close()


def over_all_gpus(stage: checks.Stage, endpoints: str) -> None:
    """Where there are several; a rehearsal has two ranks on the host."""
    gpus = 2 if stage.cpu else torch.cuda.device_count()
    for name, check, needs_s in OVER_ALL_GPUS:
        if gpus < 2:
            stage.not_run(name, "one GPU")
        elif stage.left() < needs_s:
            stage.not_run(name, f"{stage.left():.0f} s are left, and it may take {needs_s} s")
        else:
            with stage.trial(name):
                check(stage, endpoints)


def the_library(stage: checks.Stage, links: nccl_links.Links) -> None:
    # torch says with which version it was built; the loaded library may be newer.
    built = "the fake one" if stage.cpu else ".".join(map(str, torch.cuda.nccl.version()))
    files = nccl_links.mapped()
    stage.check("there is one NCCL in the process", len(files) == 1,
                f"NCCL {links.comms.version}, torch's: {built}, {', '.join(files)}")  # fmt: skip


def one_rank(stage: checks.Stage, links: nccl_links.Links) -> None:
    began = time.perf_counter()
    link = links.make()
    took = time.perf_counter() - began
    wrong = {str(dtype): links.used(link, dtype) for dtype in DTYPES}
    said = "; ".join(f"{dtype}: {text}" for dtype, text in wrong.items() if text)
    stage.check("one rank: reduce-scatter and all-gather in three types", not said, said)
    stage.measured("the init of a communicator", round(took, 3), "s")
    began = time.perf_counter()
    link.close()
    took = time.perf_counter() - began
    stage.measured("the abort of a healthy communicator", round(took, 3), "s")
    wrong = links.used(links.make())
    stage.check("the next communicator after it", not wrong, wrong)


def stale(stage: checks.Stage, links: nccl_links.Links) -> None:
    """The planted fault: a communicator is used after its end."""
    aborted, closed, live = links.make(), links.make(), links.make()
    aborted.abort("planted: the epoch is over")
    closed.close()
    seen = [links.used(aborted), links.used(closed)]
    named = seen[0].startswith("error:") and "the epoch is over" in seen[0]
    stage.check("planted fault: a stale communicator is an error, and writes nothing",
                named and seen[1].startswith("error:"), "; ".join(seen))  # fmt: skip
    wrong = links.used(live)
    stage.check("another communicator lives on beside an aborted one", not wrong, wrong)
    wrong = links.used(links.make())
    stage.check("init after an abort", not wrong, wrong)


def together(stage: checks.Stage, links: nccl_links.Links) -> None:
    first, second = links.make(), links.make()
    before = links.used(first) or links.used(second)
    cause = links.fail(second)
    seen = links.used(first)
    stage.check("communicators of two jobs in one process end together",
                not before and bool(cause) and TOGETHER in seen, before or seen)  # fmt: skip
    wrong = links.used(links.make()) or links.used(links.make())
    stage.check("both have a new communicator then", not wrong, wrong)


def a_rank_that_never_comes(stage: checks.Stage, links: nccl_links.Links) -> None:
    """The init of two ranks of which one comes: ends at its time, and ends all others with it."""
    waits_s, bystander = 3.0, links.make()
    began, said = time.perf_counter(), ""
    try:
        links.make(2, waits_s)
    except RuntimeError as error:
        said = str(error).strip()
    took = time.perf_counter() - began
    stage.check("a rank that never comes ends the init in NCCL's own text or at its time",
                f"did not arrive within {waits_s:.0f} s" in said, said,
                took_s=round(took, 2), given_s=waits_s)  # fmt: skip
    seen = links.used(bystander)
    wrong = links.used(links.make())
    stage.check("the others ended with it, and the next one works",
                TOGETHER in seen and not wrong, wrong or seen)  # fmt: skip


def a_killed_process(
    stage: checks.Stage, links: nccl_links.Links, other: subprocess.Popen[str]
) -> None:
    link = links.make()
    first = other.stdout.readline().strip()
    other.kill()
    other.wait()
    seen = [first, str(other.returncode), links.used(link)]
    link.abort("the other process is gone")
    link.close()
    seen.append(links.used(links.make()))
    stage.check("another process with a communicator is killed: ours works, ends, and begins anew",
                seen == ["ready", str(-signal.SIGKILL), "", ""],
                "; ".join(filter(None, seen)))  # fmt: skip


# --- Jobs ----------------------------------------------------------------------------------------


def train(
    cpu: bool, endpoints: str, collective: str | None, strike: Callable[[], Any] | None
) -> tuple[int, list[str]]:
    """A job of one rank: the checksum of its weights, and the texts of TrainerLost on the way."""
    model, losses = nccl_ranks.new_model(0, cpu), []
    opt = nccl_ranks.optimizer(model, (endpoints, place.fresh_job("nccl"), 0, 1), collective)
    while opt.round < ROUNDS:
        if strike is not None and opt.round == ROUNDS // 2 and not losses:
            strike()
        nccl_ranks.take_step(opt, model, 0, losses, 3)
    opt.close()
    return nccl_ranks.digest(model), losses


def a_job(stage: checks.Stage, links: nccl_links.Links, endpoints: str) -> None:
    calm, _ = train(stage.cpu, endpoints, None, None)
    ours, losses = train(stage.cpu, endpoints, "nccl", None)
    stage.check('collective="nccl" with one rank has the bits of the servers alone',
                ours == calm and not losses, "; ".join(losses))  # fmt: skip
    ended, losses = train(stage.cpu, endpoints, "nccl", lambda: links.fail(links.make()))
    said = losses[0] if losses else "step() did not say that its communicator had ended"
    stage.check("a job whose communicator ended with another's takes the step again, same bits",
                ended == calm and len(losses) == 1, said)  # fmt: skip


def two_on_one(stage: checks.Stage, early: Early) -> None:
    """The refusal is NCCL's own; the fake one is set to fail in each init."""
    job, wanted = early.job, "NCCL" if stage.cpu else "give each rank a GPU of its own"
    said = nccl_ranks.results(early.refused, stage.left())
    texts = [text for of in said for text in of["texts"]]
    slowest = max(seconds for of in said for seconds in of["seconds"])
    stage.check("two ranks on one GPU: each step ends with NCCL's own refusal, and says what to do",
                len(texts) == 4 and all(wanted in text and "says:" in text for text in texts),
                texts[0] if texts else "no step ended with an error",
                slowest_step_s=round(slowest, 2), given_s=nccl_ranks.TIMEOUT_S)  # fmt: skip
    if not stage.cpu:
        stage.check("no step of theirs took longer than its time",
                    slowest < nccl_ranks.TIMEOUT_S, f"{slowest:.1f} s")  # fmt: skip
    group = stage.folder / f"group-{job}"
    ranks = [nccl_ranks.started(stage.cpu, "continued", early.endpoints, job, rank, group)
             for rank in range(2)]  # fmt: skip
    said = nccl_ranks.results(ranks, stage.left())
    rounds, digests = {of["round"] for of in said}, {of["digest"] for of in said}
    stage.check("the same job goes on, with other processes and a process group on the CPU",
                rounds == {nccl_ranks.GO_ON} and len(digests) == 1, f"rounds {rounds}")  # fmt: skip


def world_of(stage: checks.Stage) -> int:
    return 2 if stage.cpu else torch.cuda.device_count()


def ways(stage: checks.Stage, endpoints: str) -> None:
    job, world = place.fresh_job("ways"), world_of(stage)
    group = stage.folder / f"group-{job}"
    ranks = [nccl_ranks.started(stage.cpu, "ways", endpoints, job, rank, world, group)
             for rank in range(world)]  # fmt: skip
    said = nccl_ranks.results(ranks, stage.left())
    for way in ("nccl", "group", "servers"):
        one = len({of[way] for of in said}) == 1
        stage.check(f"{world} ranks, summed by {way}: all have the same weights", one)
    stage.check("NCCL's weights are near the servers'", all(of["near"] for of in said))
    if world == 2:
        same = len({said[0][way] for way in ("nccl", "group", "servers")}) == 1
        stage.check("two ranks make one addition: the same bits in all three ways", same)


def storm(stage: checks.Stage, endpoints: str) -> None:
    """Ranks are killed at drawn moments of drawn rounds; the bits are those of a calm run."""
    seed = zlib.crc32(str(stage.folder).encode())
    draw, world, rounds = random.Random(seed), world_of(stage), 10

    def whole(strikes: list[tuple[int, int, float]]) -> list[dict[str, Any]]:
        folder = stage.folder / place.fresh_job("storm")
        folder.mkdir()

        def start(rank: int) -> Any:
            return nccl_ranks.started(stage.cpu, "train", endpoints, folder.name, rank, world,
                                      folder, rounds, plan="notice")  # fmt: skip

        ranks = [start(rank) for rank in range(world)]
        for round, rank, after_s in strikes:
            await_round(folder / f"round-{rank}", round, stage, ranks)
            time.sleep(after_s)
            ranks[rank].kill()
            ranks[rank].communicate()
            ranks[rank] = start(rank)
        return nccl_ranks.results(ranks, stage.left())

    calm = whole([])
    strikes = [(2 + 3 * i, draw.randrange(world), draw.uniform(0, 0.03)) for i in range(3)]
    said = whole(strikes)
    digests = {of["digest"] for of in [*calm, *said]}
    stage.check(f"{len(strikes)} killed ranks of {world} lose no round and no bit",
                len(digests) == 1 and {of["round"] for of in said} == {rounds},
                f"seed {seed}, strikes {strikes}",
                lost=sum(len(of["texts"]) for of in said))  # fmt: skip


def await_round(file: Path, round: int, stage: checks.Stage, ranks: list[Any]) -> None:
    """Returns when the rank has finished the round. TimeoutError, RuntimeError."""
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError):
            if int(file.read_text()) >= round:
                return
        if stage.left() < 5:
            raise TimeoutError(f"round {round} does not come")
        if any(rank.poll() not in (None, 0) for rank in ranks):
            raise RuntimeError(f"a rank ended by itself before round {round}")
        time.sleep(0.005)


# With the seconds that each may take.
OVER_ALL_GPUS = (("ranks over all GPUs", ways, 20), ("killed ranks", storm, 40))

if __name__ == "__main__":
    checks.main("nccl", run)
