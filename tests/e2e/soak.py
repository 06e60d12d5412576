"""Hours of trouble for one job with TLS: kills, new certificates, floods; the bits are compared.

    scripts/soak.sh --minutes 30 --json
    scripts/soak.sh --minutes 5 --leak 65536   # the servers lose so much with each connection: red

Comes from: scripts/soak.sh, test_soak.py. Goes to: two ballastd on loopback that this starts.
Memory and descriptors have no trend (trend.py): those of server 0, which is never killed, those of
the trainers, which are this process, and the memory of server 1, each time a new process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import ballast
import ballast.torch as bt
from dev_ca import dev_ca
from e2e.cluster import SMALL, Cluster, fresh_job, wait_for
from e2e.crowd import in_background
from e2e.small_run import Run, assert_as_undisturbed
from e2e.trend import Tolerance, assert_no_trend, least_leak, rise
from serving import built_ballastd

SERVERS = 2
ROUNDS = 5  # between two events
KIB, MIB = 1024, 1024 * 1024
TOLERANCES = {
    "server 0: resident bytes": Tolerance(always=512 * KIB, start=24 * MIB),
    "server 0: descriptors": Tolerance(always=2, start=24),
    # A process some seconds old, and rarely in the same state as the last one.
    "server 1: resident bytes": Tolerance(always=4 * MIB, start=48 * MIB),
    "trainers: resident bytes": Tolerance(always=1 * MIB, start=96 * MIB),
    "trainers: descriptors": Tolerance(always=2, start=24),
}
# Loaded before the C library by servers that shall leak.
LEAK = Path("tests/libballast_planted_leak.so")


class Soak:
    """A cluster with TLS under trouble, and one job in it."""

    def __init__(self, binary: Path, folder: Path, leak_bytes: int = 0) -> None:
        """leak_bytes: the servers' loss with each connection, and a descriptor with it."""
        self._folder = folder
        self.live = dev_ca(folder / "live", SERVERS, "--tenant", "default", "--tenant", "flood")
        (folder / "data").mkdir()
        # Connections get old as well.
        settings = {"BALLAST_LISTEN_MAX_CONNECTION_AGE": "5s"}
        if leak_bytes > 0:
            settings["LD_PRELOAD"] = str(binary.parents[1] / LEAK)
            settings["PLANTED_LEAK_BYTES"] = str(leak_bytes)
        data = folder / "data"
        self.cluster = Cluster(binary, SERVERS, data, certificates=self.live, **settings)
        self.cluster.wait_until_serving()
        self.run = Run(self.cluster, fresh_job(), 2, **self.pair("trainer-default"))
        # An attach to a new job fails when a server is killed meanwhile.
        self.run.step(ROUNDS)
        self.samples: dict[str, list[int]] = {name: [] for name in TOLERANCES}
        self.cycles = 0

    def pair(self, party: str) -> dict[str, str]:
        names = {"tls_ca": "ca.pem", "tls_cert": f"{party}.pem", "tls_key": f"{party}.key"}
        return {setting: str(self.live / name) for setting, name in names.items()}

    def cycle(self) -> None:
        """One event, and rounds during and after it."""
        events: list[Callable[[], None]] = [self._kill, self._rotate, self._flood]
        events[self.cycles % len(events)]()
        self.run.step(ROUNDS)
        self.cycles += 1
        for party, pid in (
            ("server 0", self.cluster.pid(0)),
            ("server 1", self.cluster.pid(1)),
            ("trainers", os.getpid()),
        ):
            self._sample(party, Path(f"/proc/{pid}"))

    def _sample(self, party: str, process: Path) -> None:
        status = (process / "status").read_text()
        taken = {
            "resident bytes": int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024,
            "descriptors": len(os.listdir(process / "fd")),
        }
        for what, value in taken.items():
            if f"{party}: {what}" in self.samples:
                self.samples[f"{party}: {what}"].append(value)

    def _kill(self) -> None:
        self.cluster.strike(1)

    def _rotate(self) -> None:
        """New pairs of the same authority for servers and trainers."""
        new = self._folder / f"new-{self.cycles}"
        new.mkdir()
        for name in ("ca.pem", "ca.key"):
            shutil.copy(self.live / name, new / name)
        dev_ca(new, SERVERS)
        before = [self._reloads(server) for server in range(SERVERS)]
        for made in sorted(new.glob("*-*.*")):  # keys before certificates
            made.replace(self.live / made.name)
        shutil.rmtree(new)
        for server in range(SERVERS):
            wait_for(lambda s=server: self._reloads(s) > before[s], f"server {server} to load them")

    def _reloads(self, server: int) -> float:
        page = self.cluster.get(server, "/metrics")
        return float(re.search(r'tls_reloads_total{result="loaded"} (\S+)', page)[1])

    def _flood(self) -> None:
        """Attaches of another tenant, to jobs that never become complete, during the rounds."""

        def attach() -> None:
            opt = bt.AdamW(
                [torch.nn.Parameter(torch.ones(300))], endpoints=self.cluster.endpoints,
                job=fresh_job("flood"), world_size=2, rank=0,
                **{**SMALL, "attach_timeout": 0.2}, **self.pair("trainer-flood"),
            )
            with contextlib.suppress(ballast.BallastError):
                opt.attach()

        with in_background(attach), in_background(attach):
            self.run.step(ROUNDS)

    def finish(self, binary: Path) -> dict[str, object]:
        """Compares with a run in plaintext without trouble; ends both. Raises where they differ, or
        where something rises."""
        rounds, state = self.run.round, self.run.state()
        self.run.close()
        self.cluster.stop()
        assert_as_undisturbed(state, binary, SERVERS, self._folder / "plain", rounds)
        result: dict[str, object] = {"cycles": self.cycles, "rounds": rounds, "bits_differ": 0}
        for name, samples in self.samples.items():
            print(f"{name}, 31 of {self.cycles}: {thinned(samples)}", file=sys.stderr)
        for name, samples in self.samples.items():
            tolerance = TOLERANCES[name]
            assert_no_trend(name, samples, tolerance)
            result[f"{name}, last"] = samples[-1]
            result[f"{name}, rise"] = rise(samples)
            result[f"{name}, rise allowed"] = round(tolerance.of(self.cycles))
            result[f"{name}, least leak found in a cycle"] = round(
                least_leak(self.cycles, tolerance), 3
            )
        return result


def thinned(samples: list[int]) -> list[int]:
    """31 of the samples, at even distances, the first and the last among them; or all."""
    last = len(samples) - 1
    return [samples[at] for at in sorted({last * k // 30 for k in range(31)})]


def soak(
    binary: Path, folder: Path, enough: Callable[[Soak], bool], leak_bytes: int = 0
) -> dict[str, object]:
    """Trouble until `enough` says so, which is asked after each cycle. leak_bytes: of Soak."""
    under = Soak(binary, folder, leak_bytes)
    try:
        while not enough(under):
            under.cycle()
        return under.finish(binary)
    except BaseException:
        under.run.trainers.abandon()
        raise
    finally:
        under.cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--leak", type=int, default=0, metavar="BYTES",
                        help="the servers lose so much with each connection, and a descriptor")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes

    def enough(under: Soak) -> bool:
        return under.cycles >= 6 and time.monotonic() >= end

    with tempfile.TemporaryDirectory() as folder:
        result = soak(built_ballastd(), Path(folder), enough, options.leak)
    text = "\n".join(f"{name}: {value}" for name, value in result.items())
    print(json.dumps(result) if options.json else text)


if __name__ == "__main__":
    main()
