"""Shapes of load on one server with TLS, each beside jobs of a neighbour that must end right.

Comes from: load.py, test_load.py. Goes to: one ballastd on loopback (Stage).
A shape is a context manager: its pressure is on inside of the block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import ballast
import ballast.torch as bt
from ballast.control import Control
from ballast.security import Security
from dev_ca import dev_ca
from e2e.cluster import HANG_S, SMALL, Trainers, fresh_job, wait_for
from e2e.crowd import IdleCrowd, in_background
from e2e.one_server import OneServer

HUNG_TRAINER = Path(__file__).with_name("hung_trainer.py")
PUSHED = 1 << 18  # parameters of one job that pushes


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

    def __init__(self, binary: Path, folder: Path, *flags: str) -> None:
        self.files = dev_ca(folder / "ca", 1, "--tenant", "default", "--tenant", "flood")
        where = {"ca": "ca.pem", "certificate": "server-0.pem", "key": "server-0.key"}
        # One process in Python answers the pings of thousands of connections.
        settings = ["security.mode=tls"]
        settings += ["timing.keepalive_time=10s", "timing.keepalive_timeout=20s"]
        settings += [f"security.{key}={self.files / name}" for key, name in where.items()]
        flags = (*flags, *(word for text in settings for word in ("--set", text)))
        self.environment = {
            f"BALLAST_{name.upper()}": path for name, path in self.pair("trainer-default").items()
        }
        self.server = OneServer(binary, folder, *flags)

    def pair(self, party: str) -> dict[str, str]:
        return {
            "tls_ca": str(self.files / "ca.pem"),
            "tls_cert": str(self.files / f"{party}.pem"),
            "tls_key": str(self.files / f"{party}.key"),
        }

    def connect(self) -> ssl.SSLSocket:
        """A connection of tenant `flood` whose handshake is done."""
        context = ssl.create_default_context(cafile=str(self.files / "ca.pem"))
        files = self.pair("trainer-flood")
        context.load_cert_chain(files["tls_cert"], files["tls_key"])
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(self.server.connect(), server_hostname="localhost")

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


@contextlib.contextmanager
def idle_and_arriving(stage: Stage, scale: Scale) -> Iterator[None]:
    """Connections that stay idle, and others that come and go."""
    crowd = IdleCrowd(stage.connect, scale.connections)
    pace = threading.Event()

    def arrive() -> None:
        stage.connect().close()
        pace.wait(1 / scale.arrivals_per_s)

    try:
        with in_background(crowd.answer), in_background(arrive):
            yield
        assert crowd.open == scale.connections, f"{crowd.open} of {scale.connections} were kept"
    finally:
        crowd.close()


def pushed(stage: Stage, job: str) -> int:
    page = stage.server.page("metrics")[1]
    series = rf'^ballast_push_bytes_total{{[^}}]*run="{re.escape(job)}"[^}}]*}} (\S+)'
    found = re.search(series, page, re.M)
    return int(float(found[1])) if found else 0


@contextlib.contextmanager
def straggler(stage: Stage, scale: Scale) -> Iterator[None]:
    """A world of which one trainer comes last: after the block, when all others wait for it."""
    replicas = [[torch.nn.Parameter(torch.ones(300))] for _ in range(scale.slots)]
    trainers = Trainers(stage.server, replicas, lr=0.5, weight_decay=0.0, eps=0.0)
    try:
        trainers.each(lambda opt: opt.attach())
        for (p,) in replicas:
            p.grad = torch.full_like(p, 0.25)
        last = trainers.optimizers.pop()
        early = trainers.start(lambda opt: opt.step())
        least = (scale.slots - 1) * 300 * 4
        wait_for(lambda: pushed(stage, trainers.job) >= least, "all but one to push")
        yield
        assert not any(one.done() for one in early)
        last.step()
        for one in early:
            one.result(HANG_S)
        trainers.optimizers.append(last)
        for (p,) in replicas:
            torch.testing.assert_close(p.detach(), torch.full((300,), 0.5))
        trainers.close()
    except BaseException:
        trainers.abandon()
        raise


@contextlib.contextmanager
def stopped_readers(stage: Stage, scale: Scale) -> Iterator[None]:
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
        yield
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


@contextlib.contextmanager
def pushers(stage: Stage, scale: Scale) -> Iterator[None]:
    """Jobs that push without a pause, all at once; their weights are checked at the end."""

    def start() -> tuple[torch.nn.Parameter, bt.AdamW]:
        p = torch.nn.Parameter(torch.ones(PUSHED))
        seat = {"endpoints": stage.server.endpoints, "job": fresh_job("push"), "world_size": 1}
        opt = bt.AdamW([p], lr=2**-10, weight_decay=0.0, eps=0.0, rank=0, **seat,
                       **{**SMALL, "tile_elements": 65536, "extent_elements": 65536})
        opt.attach()
        p.grad = torch.full_like(p, 0.25)
        return p, opt

    jobs = [start() for _ in range(scale.pushers)]
    with contextlib.ExitStack() as stack:
        for _, opt in jobs:
            stack.enter_context(in_background(opt.step))
        yield
    for p, opt in jobs:
        expected = torch.full((PUSHED,), 1 - opt.round * 2**-10)
        torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-3)
        opt.close()


@contextlib.contextmanager
def flooding_tenant(stage: Stage, scale: Scale) -> Iterator[None]:
    """A tenant that attaches to jobs which never become complete, and lists jobs, without a pause.

    It is refused or waits in vain, whatever it does.
    """
    files = Security(**stage.pair("operator-flood"))
    operator = Control(stage.server.endpoints, 0.0, security=files)
    refusals: set[type] = set()

    def attach() -> None:
        p = torch.nn.Parameter(torch.ones(300))
        opt = bt.AdamW([p], endpoints=stage.server.endpoints, job=fresh_job("flood"), world_size=2,
                       rank=0, **{**SMALL, "attach_timeout": 0.2}, **stage.pair("trainer-flood"))
        try:
            opt.attach()
        except ballast.BallastError as error:
            refusals.add(type(error))

    def ask() -> None:
        try:
            assert all(job["name"].startswith("flood") for job in operator.jobs())
        except ballast.BallastError as error:
            refusals.add(type(error))

    with contextlib.ExitStack() as stack:
        for _ in range(scale.floods):
            stack.enter_context(in_background(attach))
            stack.enter_context(in_background(ask))
        wait_for(lambda: bool(refusals), "the first refusal of the flood")
        yield


SHAPES: dict[str, Callable[[Stage, Scale], contextlib.AbstractContextManager[None]]] = {
    "idle and arriving": idle_and_arriving,
    "straggler": straggler,
    "stopped readers": stopped_readers,
    "pushers": pushers,
    "flooding tenant": flooding_tenant,
}
