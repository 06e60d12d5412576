"""Shapes of load on one server with TLS, each alongside jobs of a neighbour that must end right.

Comes from: load.py, test_load.py. Goes to: one ballastd on loopback (Stage).
A shape is a context manager: its pressure is on inside of the block. It gives a dictionary of facts
about the pressure, which is filled at the end of the block.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import ballast
import ballast.torch as bt
from ballast.control import Control
from ballast.security import Security
from dev_ca import dev_ca
from e2e.cluster import (
    HANG_S,
    SMALL,
    SMALL_JOB,
    Trainers,
    assert_small_steps,
    fresh_job,
    wait_for,
)
from e2e.crowd import IdleCrowd, from_many_addresses, in_background
from e2e.one_server import OneServer
from e2e.oracle import FusedAdamW, differing_bits

Facts = dict[str, object]

HUNG_TRAINER = Path(__file__).with_name("hung_trainer.py")
PUSHED = 1 << 18  # parameters of one job that pushes
VALUES = 1 << 8  # different ones among their gradients, so that the reference costs little
# The quota of the flooding tenant: one job at a time, one trainer in it, and few that wait.
FLOOD_QUOTAS = "tenants: {flood: {jobs: 1, seats: 1, waiting_attaches: 4}}"
# Threads that open connections: each handshake waits for the server several times.
ARRIVING = 16


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of each shape."""

    connections: int
    arrivals_per_s: int
    slots: int
    readers: int
    pushers: int
    floods: int


SHORT = Scale(connections=100, arrivals_per_s=20, slots=8, readers=2, pushers=3, floods=2)
LONG = Scale(connections=10_000, arrivals_per_s=200, slots=256, readers=8, pushers=10, floods=8)


class Stage:
    """A server with TLS, and the certificates of two tenants: the neighbour, `default`, whose files
    the environment names, and `flood`."""

    def __init__(self, binary: Path, folder: Path, *flags: str, time_scale: str = "1") -> None:
        """time_scale: how many times as long as usual the server and the neighbour's clients wait
        before they take the other for lost."""
        self.files = dev_ca(folder / "ca", 1, "--tenant", "default", "--tenant", "flood")
        where = {"ca": "ca.pem", "certificate": "server-0.pem", "key": "server-0.key"}
        # One process in Python answers the pings of thousands of connections.
        settings = ["timing.keepalive_time=10s", "timing.keepalive_timeout=20s"]
        settings += ["security.mode=tls"]
        settings += [f"security.{key}={self.files / name}" for key, name in where.items()]
        quotas = folder / "quotas.yaml"
        quotas.write_text(FLOOD_QUOTAS + "\n")
        quotas.chmod(0o600)
        settings += [f"security.quotas_file={quotas}"]
        self._context = ssl.create_default_context(cafile=str(self.files / "ca.pem"))
        self._context.load_cert_chain(
            self.files / "trainer-flood.pem", self.files / "trainer-flood.key"
        )
        self._context.set_alpn_protocols(["h2"])
        flags = (*flags, *(word for text in settings for word in ("--set", text)))
        self.environment = {
            f"BALLAST_{name.upper()}": path for name, path in self.pair("trainer-default").items()
        }
        self.environment["BALLAST_TIME_SCALE"] = time_scale
        self.server = OneServer(binary, folder, *flags, BALLAST_TIME_SCALE=time_scale)
        self.connect = from_many_addresses(self._connect)

    def pair(self, party: str) -> dict[str, str]:
        return {
            "tls_ca": str(self.files / "ca.pem"),
            "tls_cert": str(self.files / f"{party}.pem"),
            "tls_key": str(self.files / f"{party}.key"),
        }

    def _connect(self, source: str) -> ssl.SSLSocket:
        """A connection of tenant `flood` whose handshake is done."""
        connection = self.server.connect(source)
        return self._context.wrap_socket(connection, server_hostname="localhost")

    @contextlib.contextmanager
    def as_neighbour(self) -> Iterator[None]:
        """Clients of this process are the neighbour unless they say otherwise."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


class Arrivals:
    """Connections that come and go, by several threads: as many in a second as are offered, or as
    the machine can, which makes up for late ones. `came` counts those whose handshake was
    done."""

    def __init__(self, stage: Stage, per_s: float) -> None:
        self._stage = stage
        self._per_s = per_s
        self._began = time.monotonic()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._cpu_s = 0.0
        self.came = 0

    def arrive(self) -> None:
        """Waits for the time of the next connection, and opens it."""
        due = self._began + next(self._numbers) / self._per_s
        threading.Event().wait(max(0.0, due - time.monotonic()))
        cpu = time.thread_time()
        self._stage.connect().close()
        with self._lock:
            self._cpu_s += time.thread_time() - cpu
            self.came += 1

    def facts(self) -> Facts:
        took = time.monotonic() - self._began
        return {
            "arrivals_offered_per_s": self._per_s,
            "arrived_per_s": round(self.came / took, 1),
            "arrival_client_cpu_ms": round(1000 * self._cpu_s / max(1, self.came), 2),
        }


@contextlib.contextmanager
def idle_and_arriving(stage: Stage, scale: Scale) -> Iterator[Facts]:
    """Connections that stay idle, and others that come and go."""
    facts: Facts = {}
    begin = time.monotonic()
    crowd = IdleCrowd(stage.connect, scale.connections)
    facts["crowd_opened_s"] = round(time.monotonic() - begin, 1)
    facts["resident_crowd_bytes"] = stage.server.resident_bytes
    arrivals = Arrivals(stage, scale.arrivals_per_s)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(in_background(crowd.answer))
            for _ in range(ARRIVING):
                stack.enter_context(in_background(arrivals.arrive))
            yield facts
            facts.update(arrivals.facts())
        assert crowd.open == scale.connections, f"{crowd.open} of {scale.connections} were kept"
        assert arrivals.came > 0
        facts["connections_kept"] = crowd.open
    finally:
        crowd.close()


def pushed(stage: Stage, job: str) -> int:
    page = stage.server.page("metrics")[1]
    series = rf'^ballast_push_bytes_total{{[^}}]*run="{re.escape(job)}"[^}}]*}} (\S+)'
    found = re.search(series, page, re.M)
    return int(float(found[1])) if found else 0


@contextlib.contextmanager
def straggler(stage: Stage, scale: Scale) -> Iterator[Facts]:
    """A world of which one trainer comes last: after the block, when all others wait for it."""
    replicas = [[torch.nn.Parameter(torch.ones(300))] for _ in range(scale.slots)]
    trainers = Trainers(stage.server, replicas, **SMALL_JOB)
    gradient = torch.linspace(-1.0, 2.0, 300)
    try:
        trainers.each(lambda opt: opt.attach())
        for (p,) in replicas:
            p.grad = gradient.clone()
        last = trainers.optimizers.pop()
        early = trainers.start(lambda opt: opt.step())
        least = (scale.slots - 1) * 300 * 4
        wait_for(lambda: pushed(stage, trainers.job) >= least, "all but one to push")
        yield {"slots": scale.slots}
        assert not any(one.done() for one in early)
        last.step()
        for one in early:
            one.result(HANG_S)
        trainers.optimizers.append(last)
        assert_small_steps(replicas, [gradient])
        trainers.close()
    except BaseException:
        trainers.abandon()
        raise


@contextlib.contextmanager
def stopped_readers(stage: Stage, scale: Scale) -> Iterator[Facts]:
    """Trainers in rounds, of which half are stopped: they take nothing that the server sends."""
    command = [sys.executable, str(HUNG_TRAINER), stage.server.endpoint]
    environment = {**os.environ, **stage.environment}
    jobs = [fresh_job("reader") for _ in range(scale.readers)]
    processes = [
        subprocess.Popen([*command, job, "1", "0"], env=environment,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for job in jobs
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == b"ready\n"
        for process in processes[::2]:
            process.send_signal(signal.SIGSTOP)
        yield {"readers": len(processes), "readers_stopped": len(processes[::2])}
        assert all(process.poll() is None for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait(HANG_S)
    files = Security(**stage.pair("admin"))
    for job in jobs:
        operator = Control(stage.server.endpoints, HANG_S, security=files)
        wait_for(lambda job=job: deleted(operator, job), f"the end of {job}")


def deleted(operator: Control, job: str) -> bool:
    """Whether the job is gone; false while its trainer still holds its seat."""
    try:
        operator.delete_job(job)
    except ballast.BallastError as error:
        if error.reason != "JOB_BUSY":
            raise
        return False
    return True


class Pusher:
    """A job of one trainer that pushes PUSHED parameters in each round."""

    HYPER = {"lr": 2**-10, "weight_decay": 0.0, "eps": 0.0}

    def __init__(self, stage: Stage) -> None:
        self.steps = 0  # that have ended
        self._p = torch.nn.Parameter(torch.ones(PUSHED))
        self._p.grad = torch.empty(PUSHED)
        seat = {"endpoints": stage.server.endpoints, "job": fresh_job("push"), "world_size": 1}
        self._opt = bt.AdamW([self._p], rank=0, **self.HYPER, **seat,
                             **{**SMALL, "tile_elements": 65536, "extent_elements": 65536})
        self._opt.attach()

    @staticmethod
    def values(step: int) -> torch.Tensor:
        """The gradient has each of these PUSHED / VALUES times; other ones in the next step."""
        return torch.linspace(-1.0, 1.0, VALUES) * 2.0 ** -(step % 5)

    def step(self) -> None:
        self._p.grad.view(VALUES, -1).copy_(self.values(self.steps)[:, None])
        self._opt.step()
        self.steps += 1

    def close(self, expected: torch.Tensor) -> None:
        """expected: VALUES weights."""
        assert self._opt.round == self.steps
        each = expected.repeat_interleave(PUSHED // VALUES)
        assert differing_bits(self._p.detach(), each) == 0
        self._opt.close()


@contextlib.contextmanager
def pushers(stage: Stage, scale: Scale) -> Iterator[Facts]:
    """Jobs that push without a pause, all at once; their weights are checked at the end."""
    jobs = [Pusher(stage) for _ in range(scale.pushers)]
    facts: Facts = {}
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        for job in jobs:
            stack.enter_context(in_background(job.step))
        yield facts
        rounds = sum(job.steps for job in jobs)
        facts["pushed_rounds"] = rounds
        facts["pushed_bytes_per_s"] = round(4 * PUSHED * rounds / (time.monotonic() - begin))
    oracle = FusedAdamW(torch.ones(VALUES), **Pusher.HYPER)
    done = 0
    for job in sorted(jobs, key=lambda job: job.steps):
        for step in range(done, job.steps):
            oracle.step(job.values(step))
        done = job.steps
        job.close(oracle.weight)


@contextlib.contextmanager
def flooding_tenant(stage: Stage, scale: Scale) -> Iterator[Facts]:
    """A tenant at its quota that steps its job, attaches to others and lists jobs without a pause.

    The attaches are refused or wait in vain, whatever the tenant does.
    """
    files = Security(**stage.pair("operator-flood"))
    operator = Control(stage.server.endpoints, 0.0, security=files)
    refusals: collections.Counter[str] = collections.Counter()

    def trainer(world: int, attach_timeout: float) -> bt.AdamW:
        p = torch.nn.Parameter(torch.ones(300))
        p.grad = torch.full_like(p, 0.25)
        return bt.AdamW([p], endpoints=stage.server.endpoints, job=fresh_job("flood"), rank=0,
                        world_size=world, **{**SMALL, "attach_timeout": attach_timeout},
                        **stage.pair("trainer-flood"))

    def attach(world: int) -> None:
        try:
            trainer(world, 0.2).attach()
            refusals["none"] += 1
        except ballast.BallastError as error:
            refusals[type(error).__name__] += 1

    def ask() -> None:
        try:
            assert all(job["name"].startswith("flood") for job in operator.jobs())
        except ballast.BallastError as error:
            refusals[type(error).__name__] += 1

    within = trainer(1, HANG_S)
    within.step()
    with contextlib.ExitStack() as stack:
        stack.enter_context(in_background(within.step))
        for number in range(scale.floods):
            stack.enter_context(in_background(lambda world=1 + number % 2: attach(world)))
            stack.enter_context(in_background(ask))
        wait_for(lambda: refusals["OverQuota"] > 0, "the first refusal of the flood")
        yield {"refusals": refusals}
    assert refusals["none"] == 0
    within.close()


SHAPES: dict[str, Callable[[Stage, Scale], contextlib.AbstractContextManager[Facts]]] = {
    "idle and arriving": idle_and_arriving,
    "straggler": straggler,
    "stopped readers": stopped_readers,
    "pushers": pushers,
    "flooding tenant": flooding_tenant,
}
