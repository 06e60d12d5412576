"""Running servers, and the trainers of one job as threads of this process.

Comes from: the fixtures in conftest.py. Goes to: ballast.launcher, ballast.torch.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import ballast.torch as bt
from ballast.launcher.servers import Servers

import serving
from e2e.oracle import FusedAdamW, differing_bits, scale, slot_order_sum

# A call that takes this long hangs; every wait of these tests ends by then.
HANG_S = 60.0
# Small extents, so that a small model is spread over several servers. Without durability, whatever
# the package's default is: tests that want it say so.
SMALL = {"tile_elements": 64, "extent_elements": 128, "durability": "none"}
SMALL_JOB = {"lr": 0.5, "weight_decay": 0.0, "eps": 0.0}

_job_numbers = itertools.count(1)


def fresh_job(stem: str = "job") -> str:
    return f"{stem}-{os.getpid()}-{next(_job_numbers)}"


class Cluster:
    """`count` ballastd processes. settings: BALLAST_<SECTION>_<FIELD> values of their config."""

    def __init__(
        self, binary: Path, count: int, folder: Path, certificates: Path | None = None,
        **settings: str,
    ) -> None:
        """certificates: directory of dev-ca.sh; None: plaintext."""
        self.binary = binary
        self._servers = Servers(binary, count, folder, None, certificates=certificates)
        # Jobs of earlier tests go quickly: a server holds a limited number.
        env = {**os.environ, "BALLAST_TIMING_JOB_TTL": "1s", **settings}
        self._servers.start(env, lambda: False)
        self.endpoints = self._servers.addresses

    def pid(self, server: int) -> int:
        return self._servers.children[server].pid

    def pids(self) -> list[int]:
        return [child.pid for child in self._servers.children]

    def ready_file(self, server: int) -> Path:
        """A JSON object with the server's "pid"; not there while it starts again."""
        return self._servers._ready_file(server)

    def kill(self, server: int, signum: int) -> None:
        """A stopped server has stopped on return: its threads do so one by one."""
        os.kill(self.pid(server), signum)
        if signum == signal.SIGSTOP:
            tasks = Path(f"/proc/{self.pid(server)}/task")
            wait_for(lambda: set(map(state_of, tasks.iterdir())) == {"T"}, "a stop", every_s=0.001)

    def wait_until_serving(self) -> None:
        serving.wait_until_serving(self._servers.admin_addresses)

    def running(self) -> list[bool]:
        return [not child.ended() for child in self._servers.children]

    def killed_by(self, server: int, done: subprocess.CompletedProcess[str]) -> bool:
        """Whether a failpoint of `server` has ended it during a command that nothing else fails.

        The command hears of the broken connection before the process is gone.
        """
        if done.returncode != 0:
            ended = self._servers.children[server].ended
            wait_for(ended, f"the end of server {server}, which failed: {done.stderr}")
        return not self.running()[server]

    def exit_code(self, server: int) -> int:
        """Waits for the end of a server after an order to end."""
        child = self._servers.children[server]
        wait_for(child.ended, f"the end of server {server}")
        return child.code()

    def restart(self, server: int) -> None:
        """Restarts a server, ended or about to end, on its data and port.

        Returns when it listens. To be called by the main thread.
        """
        wait_for(self._servers.children[server].ended, f"the end of server {server}")
        self._servers.restart(server)
        wait_for(lambda: self._servers.ready(server), f"server {server} to listen again")

    def arm(self, server: int, failpoints: str) -> None:
        """Starts a server again with failpoints (common/faults/failpoint.h), once."""
        clean = self._servers._environ
        self._servers._environ = {**clean, "BALLAST_FAILPOINTS": failpoints}
        self.strike(server)
        self._servers._environ = clean

    def strike(self, *servers: int, signum: int = signal.SIGKILL) -> None:
        """Ends servers, all at once, and starts them again."""
        for server in servers:
            self.kill(server, signum)
        for server in servers:
            self.restart(server)

    @contextlib.contextmanager
    def starting(self, server: int) -> Iterator[None]:
        """Starts a server again that inside of this listens, but does not know its peers."""
        peers = self._servers._peers_file()
        hidden = peers.rename(peers.with_suffix(".hidden"))
        found = f"peer is reachable server={server}"
        before = self.log(0).count(found)
        self.strike(server)
        try:
            wait_for(lambda: self.log(0).count(found) > before, f"the home to reach {server}")
            yield
        finally:
            hidden.rename(peers)

    def log(self, server: int) -> str:
        return self._servers._log_file(server).read_text()

    @property
    def admin_addresses(self) -> list[str]:
        return self._servers.admin_addresses

    def get(self, server: int, page: str) -> str:
        """The answer of a server's admin port: "/metrics", "/statusz?format=json"."""
        url = f"http://{self.admin_addresses[server]}{page}"
        with urllib.request.urlopen(url, timeout=HANG_S) as reply:
            return reply.read().decode()

    def pushed_bytes(self, server: int, job: str) -> int:
        """Payload of a job that a server has taken so far: weights at its start, gradients."""
        text = self.get(server, "/metrics")
        labels = rf'{{tenant="default",run="{re.escape(job)}"}}'
        found = re.search(rf"^ballast_push_bytes_total{labels} (\S+)", text, re.M)
        return int(float(found.group(1))) if found else 0

    def jobs(self, server: int = 0) -> dict[str, dict[str, Any]]:
        """What /statusz of a server says of its jobs, by name."""
        (status,) = json.loads(self.get(server, "/statusz?format=json"))["servers"]
        return {job["name"]: job for job in status["jobs"]}

    def wait_until_slot_waits(self, job: str, slot: int) -> None:
        """Until the home has seen `slot` attach to a still incomplete job."""

        def seen() -> bool:
            found = self.jobs().get(job)
            return found is not None and found["slots"][slot]["state"] == "attached"

        wait_for(seen, f"slot {slot} of job {job}")

    def stop(self) -> None:
        for server, alive in enumerate(self.running()):
            if alive:
                self.kill(server, signal.SIGCONT)
        self._servers.stop()


def state_of(task: Path) -> str:
    """T: stopped; see proc(5). Empty when the task has ended."""
    try:
        return (task / "stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""


def wait_for(condition: Callable[[], bool], what: str, every_s: float = 0.02) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(every_s)


class Trainers:
    """The optimizers of all slots of one job; their blocking calls run side by side."""

    def __init__(
        self,
        cluster: Cluster,
        replicas: Sequence[Any] | dict[int, Any],
        job: str = "",
        world: int = 0,
        kind: type = bt.AdamW,
        **options: Any,
    ) -> None:
        """replicas: what `kind`, a class of bt, takes as parameters, for every slot, or by slot
        where other processes have the rest of a world of `world`."""
        by_slot = replicas if isinstance(replicas, dict) else dict(enumerate(replicas))
        self.job = job or fresh_job()
        self.optimizers = [
            kind(
                params,
                endpoints=cluster.endpoints,
                job=self.job,
                world_size=world or len(by_slot),
                rank=slot,
                **{**SMALL, "attach_timeout": HANG_S, **options},
            )
            for slot, params in by_slot.items()
        ]
        self._pool = ThreadPoolExecutor(len(by_slot))
        if options.get("init") == "broadcast":
            self.each(lambda opt: opt.attach())

    def start(self, call: Callable[[bt.AdamW], Any]) -> list[Future]:
        """Runs `call` for every slot at the same time."""
        return [self._pool.submit(call, opt) for opt in self.optimizers]

    def each(self, call: Callable[[bt.AdamW], Any]) -> list[Any]:
        """Runs `call` for every slot at the same time; results in slot order. First error."""
        return [future.result(HANG_S) for future in self.start(call)]

    def step(self) -> dict[str, Any]:
        """One round of all slots; the report of slot 0, after comparing it with the others'."""
        self.each(lambda opt: opt.step())
        reports = [opt.last_report for opt in self.optimizers]
        for key in ("round", "applied", "grad_norm", "clip_coef", "opt_step", "nonfinite"):
            values = {repr(r[key]) for r in reports}  # repr, because the norm may be NaN
            assert len(values) == 1, (key, values)
        return reports[0]

    def errors(self) -> list[Exception | None]:
        """One round of all slots, expected to fail; returns the error of each slot's step()."""
        return self.each(error_of_step)

    def close(self) -> None:
        self.each(lambda opt: opt.close())
        self._pool.shutdown()

    def abandon(self) -> None:
        """Breaks every call off, so that a failed test can end."""
        for opt in self.optimizers:
            if opt._membership.session is not None:
                opt._membership.session.abandon("the test has failed")


def error_of_step(opt: bt.AdamW) -> Exception | None:
    """What step() raises."""
    return error_of(opt.step)


def error_of(call: Callable[[], Any]) -> Exception | None:
    """What `call` raises."""
    try:
        call()
        return None
    except Exception as error:
        return error


def run_small_job(cluster: Cluster, world: int = 1) -> None:
    """A fresh job, one round, the bits of its first step: whatever happened before, this works."""
    replicas = [[torch.nn.Parameter(torch.ones(300))] for _ in range(world)]
    trainers = Trainers(cluster, replicas, **SMALL_JOB)
    gradient = torch.linspace(-1.0, 2.0, 300)
    for (p,) in replicas:
        p.grad = gradient.clone()
    trainers.step()
    assert_small_steps(replicas, [gradient])
    trainers.close()


def assert_small_steps(
    replicas: Sequence[Sequence[torch.Tensor]], gradients: Sequence[torch.Tensor]
) -> None:
    """Each trainer has the bits that AdamW makes of ones with SMALL_JOB, when all trainers have had
    these gradients, one in a round."""
    world = len(replicas)
    oracle = FusedAdamW(torch.ones_like(gradients[0]), **SMALL_JOB)
    for gradient in gradients:
        oracle.step(slot_order_sum([gradient] * world) * scale(world))
    for (p,) in replicas:
        assert differing_bits(p.detach(), oracle.weight) == 0
