"""Trainers of test_collective_storm.py, as children of one process with torch already imported.

usage: storm_trainer.py
  Reads a JSON object a line: {"log": file, ...}, with the fields of Case. For each it forks a
  trainer and prints its pid; when a child has ended, {"pid": pid, "code": as in subprocess}. The
  object {"kill": pid} kills a running child.
A trainer runs up to round `rounds`. It writes its finished rounds to FOLDER/done-RANK, and at its
end its weights, in float64, to FOLDER/weights-RANK, and to FOLDER/result-RANK a JSON object with
their checksum and the bytes that it has pushed. A strike kills a process
when its trainer is at a place for the first time, and is done once: FOLDER/struck-ID says so.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "examples/quickstart")]

import ballast  # noqa: E402
import ballast.torch as bt  # noqa: E402
import torch  # noqa: E402
from ballast.rendezvous import Rendezvous  # noqa: E402
from e2e.collective_trainer import HYPER, backward, group_of, new_model  # noqa: E402
from e2e.rounding import flat  # noqa: E402

GROUP_LOST = 3
ROUNDS_LOST = 5


@dataclasses.dataclass
class Strike:
    """place: init, exchanged (the id is), told (that all are ready), agree, reduce, push, pull or
    gather.
    victim: "" this trainer, "-" none, else a file that names the pid of a server. bucket: of reduce
    and gather. after_ms: from the place to the kill. behind: the strike that comes first; else the
    trainer waits there."""

    id: int
    round: int
    place: str
    victim: str
    bucket: int
    after_ms: float
    behind: int = -1


@dataclasses.dataclass
class Case:
    """collective: "nccl", "none" (the servers sum), or the file by which a group of gloo meets."""

    endpoints: list[str]
    job: str
    rank: int
    world: int
    folder: str
    rounds: int
    collective: str
    group_s: float
    extent_elements: int
    strikes: list[dict[str, Any]]

    @property
    def gloo(self) -> bool:
        return self.collective not in ("nccl", "none")


class Striker:
    """Puts the strikes of one trainer in place."""

    def __init__(self, case: Case, opt: bt.AdamW) -> None:
        self._case, self._opt = case, opt
        self._left = [Strike(**strike) for strike in case.strikes]

    def arm(self) -> None:
        """After attach(): there are a session and a collective."""
        shares, session = self._opt._membership.shares, self._opt._membership.session
        if shares is None:
            return
        calls = shares._collective
        if not self._case.gloo:
            self._wrap(calls, "_begin", lambda _: self.at("init", 0, session.round + 1))
            self._wrap(calls, "_everyones", lambda _: self.at("agree", 0, session.round + 1))
            self._follow("exchange", "exchanged"), self._follow("ready", "told")
        self._wrap(calls, "reduce_scatter", lambda a: self.at("reduce", a[2], session.round + 1))
        self._wrap(calls, "all_gather", lambda a: self.at("gather", a[2], session.round))
        self._wrap(session, "step", lambda _: self._in_step(session))

    def _wrap(self, owner: Any, name: str, before: Callable[[Any], None]) -> None:
        inner = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            before(arguments)
            return inner(*arguments)

        setattr(owner, name, call)

    def _follow(self, act: str, place: str) -> None:
        # After a kill there the call is made again, as by a rank that did not hear its answer.
        inner = getattr(Rendezvous, act)

        def call(meeting: Rendezvous, tag: str, id: bytes = b"") -> Any:
            result = inner(meeting, tag, id)
            killed = self.at(place, 0, self._opt.round + 1)
            return inner(meeting, tag, id) if killed else result

        setattr(Rendezvous, act, call)

    def _in_step(self, session: Any) -> None:
        self.at("push", 0, session.round + 1)
        before = session.counters()["payload_down_bytes"]

        def weights_come() -> None:
            while session.counters()["payload_down_bytes"] == before:
                time.sleep(0.0002)

        self.at("pull", 0, session.round + 1, weights_come)

    def at(
        self, place: str, bucket: int, round: int, wait: Callable[[], None] | None = None
    ) -> bool:
        """The trainer is at `place`. wait: the wait for an earlier event, on another thread. True
        when it killed a server; then the trainer continues."""
        killed = False
        for strike in list(self._left):
            later = round >= strike.round if place == "init" else round == strike.round
            if strike.place != place or not later:
                continue
            if place in ("reduce", "gather") and strike.bucket != bucket:
                continue
            self._left.remove(strike)
            while strike.behind >= 0 and not self._done(strike.behind):
                time.sleep(0.001)
            if self._done(strike.id):
                continue
            if wait is None and strike.after_ms == 0:
                self._kill(strike)
                killed = strike.victim != "-"
            else:
                threading.Thread(target=self._later, args=(strike, wait), daemon=True).start()
        return killed

    def _done(self, id: int) -> bool:
        return (Path(self._case.folder) / f"struck-{id}").exists()

    def _later(self, strike: Strike, wait: Callable[[], None] | None) -> None:
        if wait is not None:
            wait()
        time.sleep(strike.after_ms / 1000)
        self._kill(strike)

    def _kill(self, strike: Strike) -> None:
        while not self._try_to_kill(strike):
            time.sleep(0.001)  # The server is being started again.

    def _try_to_kill(self, strike: Strike) -> bool:
        # A server that another strike has killed has no file, or one of the process that ended.
        try:
            own = strike.victim in ("", "-")
            victim = os.getpid() if own else json.loads(Path(strike.victim).read_text())["pid"]
            (Path(self._case.folder) / f"struck-{strike.id}").touch()
            if strike.victim != "-":
                os.kill(victim, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return True


def rounds_seen(case: Case) -> int:
    """Rounds whose end any trainer of the job has seen."""
    files = [Path(case.folder) / f"done-{rank}" for rank in range(case.world)]
    return max((int(file.read_text() or 0) for file in files if file.exists()), default=0)


def optimizer_of(case: Case, model: torch.nn.Module) -> bt.AdamW:
    collective: Any = case.collective
    if case.gloo:
        folder, name = os.path.split(case.collective)
        collective = group_of(folder, name, case.rank, case.world, case.group_s)
    return bt.AdamW(
        model.named_parameters(), job=case.job, endpoints=case.endpoints, rank=case.rank,
        world_size=case.world, durability="process", resume="auto", collective=collective,
        tile_elements=64, extent_elements=case.extent_elements, **HYPER,
    )  # fmt: skip


def train(case: Case) -> int:
    seen = rounds_seen(case)
    model = new_model(torch.float32)
    opt = optimizer_of(case, model)
    striker = Striker(case, opt)
    if case.gloo:
        striker.at("init", 0, seen + 1)
    opt.attach()
    if opt.round < seen:
        print(f"round {seen} was finished, and the job is at {opt.round}", file=sys.stderr)
        return ROUNDS_LOST
    striker.arm()
    before = up_bytes(opt)
    while opt.round < case.rounds:
        backward(model, opt.round, case.rank)
        try:
            opt.step()
        except ballast.BallastError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            lost = isinstance(error, ballast.TrainerLost)
            if case.gloo and (lost or error.reason == "STALE_EPOCH"):
                return GROUP_LOST
            if not lost:
                raise
        else:
            put(case, "done", str(opt.round).encode())
    digest = 0
    for p in model.parameters():
        digest = zlib.crc32(p.detach().numpy().tobytes(), digest)
    result = {"round": opt.round, "digest": digest, "up_bytes": up_bytes(opt) - before}
    put(case, "weights", flat(list(model.parameters()), model).numpy().tobytes())
    put(case, "result", json.dumps(result).encode())
    opt.close()
    return 0


def up_bytes(opt: bt.AdamW) -> int:
    return opt.counters["payload_up_bytes"]


def put(case: Case, name: str, content: bytes) -> None:
    """Into the file NAME-RANK, whole or not at all."""
    fresh = Path(case.folder) / f"{name}-{case.rank}.new"
    fresh.write_bytes(content)
    fresh.replace(fresh.with_suffix(""))


def child(given: dict[str, Any]) -> int:
    log = os.open(given.pop("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    warnings.simplefilter("always")
    try:
        return train(Case(**given))
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush(), sys.stderr.flush()


def serve() -> None:
    def say(said: dict[str, int]) -> None:
        print(json.dumps(said), flush=True)

    ending: set[int] = set()
    pending = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.01)
        if ready:
            read = os.read(0, 1 << 16)
            if not read:
                break
            *lines, pending = (pending + read).split(b"\n")
            for line in map(json.loads, lines):
                if "kill" in line:
                    if line["kill"] in ending:
                        os.kill(line["kill"], signal.SIGKILL)
                    continue
                pid = os.fork()
                if pid == 0:
                    os._exit(child(line))
                ending.add(pid)
                say({"pid": pid})
        for pid in list(ending):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                ending.remove(pid)
                say({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    serve()
