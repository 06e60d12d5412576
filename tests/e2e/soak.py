"""Hours of trouble for one job with TLS: kills, new certificates, floods; the bits are compared.

    scripts/soak.sh --minutes 30 --json

Comes from: scripts/soak.sh, test_soak.py. Goes to: two ballastd on loopback that this starts.
Server 0 is never killed: what it holds in memory and descriptors must have no trend.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
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
from serving import built_ballastd

SERVERS = 2
ROUNDS = 5  # between two events
# What the medians of the last third of the samples may lie above those of the first third.
RESIDENT_SLACK_BYTES = 24 * 1024 * 1024
DESCRIPTOR_SLACK = 8


class Soak:
    """A cluster with TLS under trouble, and one job in it."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._folder = folder
        self.live = dev_ca(folder / "live", SERVERS, "--tenant", "default", "--tenant", "flood")
        (folder / "data").mkdir()
        # Connections get old as well.
        age = {"BALLAST_LISTEN_MAX_CONNECTION_AGE": "5s"}
        self.cluster = Cluster(binary, SERVERS, folder / "data", certificates=self.live, **age)
        self.cluster.wait_until_serving()
        self.run = Run(self.cluster, fresh_job(), 2, **self.pair("trainer-default"))
        # An attach to a new job fails when a server is killed meanwhile.
        self.run.step(ROUNDS)
        self.resident: list[int] = []
        self.descriptors: list[int] = []
        self.cycles = 0

    def pair(self, party: str) -> dict[str, str]:
        names = {"tls_ca": "ca.pem", "tls_cert": f"{party}.pem", "tls_key": f"{party}.key"}
        return {setting: str(self.live / name) for setting, name in names.items()}

    def cycle(self) -> None:
        """One event, and rounds beside it and behind it."""
        events: list[Callable[[], None]] = [self._kill, self._rotate, self._flood]
        events[self.cycles % len(events)]()
        self.run.step(ROUNDS)
        self.cycles += 1
        process = Path(f"/proc/{self.cluster.pid(0)}")
        status = (process / "status").read_text()
        self.resident.append(int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024)
        self.descriptors.append(len(os.listdir(process / "fd")))

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
        """Attaches of another tenant, to jobs that never become complete, beside the rounds."""

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
        """Compares with a run in plaintext without trouble; ends both. Raises where they differ."""
        rounds, state = self.run.round, self.run.state()
        self.run.close()
        self.cluster.stop()
        assert_as_undisturbed(state, binary, SERVERS, self._folder / "plain", rounds)
        self._check_trends()
        return {
            "cycles": self.cycles,
            "rounds": rounds,
            "bits_differ": 0,
            "resident_first_bytes": self.resident[0],
            "resident_last_bytes": self.resident[-1],
            "descriptors_first": self.descriptors[0],
            "descriptors_last": self.descriptors[-1],
        }

    def _check_trends(self) -> None:
        third = max(1, self.cycles // 3)
        for name, samples, slack in (
            ("resident bytes", self.resident, RESIDENT_SLACK_BYTES),
            ("descriptors", self.descriptors, DESCRIPTOR_SLACK),
        ):
            first, last = statistics.median(samples[:third]), statistics.median(samples[-third:])
            assert last <= 1.10 * first + slack, f"{name} rise from {first} to {last}"


def soak(binary: Path, folder: Path, enough: Callable[[Soak], bool]) -> dict[str, object]:
    """Trouble until `enough` says so, which is asked after each cycle."""
    under = Soak(binary, folder)
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
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        result = soak(built_ballastd(), Path(folder), lambda _: time.monotonic() >= end)
    text = "\n".join(f"{name}: {value}" for name, value in result.items())
    print(json.dumps(result) if options.json else text)


if __name__ == "__main__":
    main()
