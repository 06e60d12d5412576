#!/usr/bin/env python3
"""Kill storm: real servers and trainers, killed, stopped and starved for as long as asked.

usage: kill_storm.py --bin BUILD (--kills N | --minutes M | --failpoints) [--servers S]
                     [--trainers W] [--seed X] [--durability power|process]
                     [--tier dram|nvme] [--optimizer KIND] [--think-us N]
                     [--snapshots] [--keep] [--json]

Trainers compare every weight of every round with a reference in their own process, and masters and
moments at the end of each job (reference.h). This program decides the victims, the strikes and
their times. Progress goes to standard error, the result to standard output (one JSON object with
--json). The exit status is 0 when no round was lost, no bit differed, no process needed help, and
everything requested was done; else 1, and the logs stay in a folder, which is named. See
docs/kill-storm.md.

Comes from: scripts/kill_storm.sh, ctest. Goes to: ballastd, fault_trainer.
Thread safety: one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cluster import HANG_S, POLL_S, Cluster, Red
from processes import (
    Server, Trainer, clean_environment, enter_own_network, mount_small_disk, unmount_small_disk,
)  # fmt: skip
from snapshots import Snapshots

# How long an armed failpoint may take before something is done so that it is reached.
PROVOKE_S = 1.0
KILLS_PER_JOB = 25
KINDS = ("drawn", "AdamW", "Adam", "SGD", "Adagrad", "Lion", "LAMB", "apply_delta")


def flip_a_bit(data: Path, rng: random.Random) -> str:
    """Every kind of file as often as the others, and mostly nonzero bytes."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(data.rglob("*")):
        if path.is_file() and path.stat().st_size > 0:
            kinds.setdefault(path.name.split("-")[0], []).append(path)
    path = rng.choice(kinds[rng.choice(sorted(kinds))])
    content = path.read_bytes()
    at = rng.randrange(len(content))
    for _ in range(1000 if rng.random() < 0.9 else 0):
        if content[at] != 0:
            break
        at = rng.randrange(len(content))
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ (1 << rng.randrange(8))]))
    return f"a bit of byte {at} of {path.relative_to(data)}"


class Storm:
    """A run: jobs one after the other, each with its strikes, and their results."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.rng = random.Random(options.seed)
        self.cluster = Cluster(options, folder, self.rng)
        self.pauses: list[float] = []
        self.counts: dict[str, int] = {}
        self.rounds = self.jobs = self.damages = self.damages_refused = 0
        self.small_disk = False
        self.snapshots: Snapshots | None = None
        if options.snapshots:
            self.snapshots = Snapshots(self.cluster, folder / "snapshots", self.rng)
            self.cluster.beside = self.snapshots.pump
        self.begun = time.monotonic()
        names = subprocess.run(
            [str(Path(options.bin) / "bin" / "ballastd"), "--list-failpoints"],
            check=True, capture_output=True, text=True, env=clean_environment(),
        ).stdout.split()
        # Its jobs neither grow nor are kept: test_growth.py, test_snapshots.py, test_forks.py,
        # test_exchange.py.
        others = ("growth.", "snapshot.", "restore.", "fork.", "export.", "import.")
        if options.optimizer != "LAMB":  # Not every round has ratios.
            others = (*others, "ratios.")
        self.failpoints = [name for name in names if not name.startswith(others)]
        self.next_failpoint = self.rng.randrange(len(self.failpoints))

    # --- Jobs

    def start_servers(self) -> None:
        cluster = self.cluster
        small = cluster.servers[-1]
        # Forks share files with snapshots, which lie elsewhere.
        wanted = self.snapshots is None
        refusal = mount_small_disk(self.folder / "small") if wanted else "snapshots are taken"
        if refusal:
            self.say(f"skipped: full disks; {refusal}")
        else:
            self.small_disk, small.data = True, self.folder / "small" / "data"
        for server in cluster.servers:
            server.data.mkdir(exist_ok=True)
            server.wanted = True
        cluster.wait(lambda: all(s.ready() for s in cluster.servers), "the servers")
        peers = [{"id": s.number, "address": s.address} for s in cluster.servers]
        unfinished = self.folder / "peers.tmp"
        unfinished.write_text(json.dumps({"peers": peers}))
        unfinished.rename(self.folder / "peers.json")

    def begin_job(self) -> None:
        self.jobs += 1
        shared = self.folder / f"job-{self.jobs}"
        shared.mkdir()
        for trainer in self.cluster.trainers:
            trainer.life = 0
            trainer.job = {
                "job": f"storm-{self.jobs}", "folder": str(shared),
                "world": str(self.options.trainers), "seed": str(self.options.seed + self.jobs),
                "durability": self.options.durability, "think-us": str(self.options.think_us),
                "device": "nvme" if self.options.tier == "nvme" else "cpu",
                "optimizer": self.options.optimizer,
            }
            trainer.endpoints = [s.address for s in self.cluster.servers]
            trainer.wanted = True
        if self.snapshots is not None:
            self.snapshots.jobs.append(f"storm-{self.jobs}")

    def end_job(self) -> None:
        """All trainers run up to the same round, compare everything and leave."""
        cluster = self.cluster
        cluster.await_rounds()
        shared = Path(cluster.trainers[0].job["folder"])
        last = cluster.round() + 20
        unfinished = shared / "last.tmp"
        unfinished.write_text(str(last))
        unfinished.rename(shared / "last")
        if self.rng.random() < 0.5:  # Others may have left by then.
            cluster.pass_time(self.rng.uniform(0, 0.2))
            cluster.kill(self.rng.choice([p for p in cluster.everyone() if p.wanted]))
        cluster.wait(lambda: not any(t.wanted for t in cluster.trainers), "the job's end")
        cluster.wait(lambda: not cluster.zombies, "zombies to be fenced")
        self.rounds += last
        self.say(f"job {self.jobs} ended after {last} rounds with the reference's bits")

    # --- Strikes. Each returns when its effect stands; the rounds that follow are awaited outside.

    def some(self, processes: list) -> list:
        return self.rng.sample(processes, self.rng.randint(1, len(processes)))

    def strike_one_server(self) -> None:
        self.cluster.kill(self.rng.choice(self.cluster.servers))

    def strike_one_trainer(self) -> None:
        self.cluster.kill(self.rng.choice(self.cluster.trainers))

    def strike_some(self) -> None:
        self.cluster.kill(*self.some(self.cluster.everyone()))

    def strike_all_servers(self) -> None:
        self.cluster.kill(*self.cluster.servers)

    def strike_all_trainers(self) -> None:
        self.cluster.kill(*self.cluster.trainers)

    def strike_everyone(self) -> None:
        self.cluster.kill(*self.cluster.everyone())

    def strike_again_and_again(self) -> None:
        """Kills that do not wait for the recovery from the one before."""
        for _ in range(self.rng.randint(2, 4)):
            self.cluster.kill(*self.some(self.cluster.everyone()))
            self.cluster.pass_time(self.rng.uniform(0, 0.3))

    def strike_stop(self) -> None:
        """A process that hangs for a while."""
        victim = self.rng.choice(self.cluster.everyone())
        stopped = victim.signal(signal.SIGSTOP)
        self.cluster.pass_time(self.rng.choice((0.05, 0.3, 1.0, 2.0)))
        if stopped:
            victim.signal(signal.SIGCONT)

    def strike_zombie(self) -> None:
        """A trainer hangs, another takes its seat, the first wakes up: it must end, fenced."""
        cluster = self.cluster
        seat = self.rng.choice(cluster.trainers)
        if not seat.alive() or seat.done() == 0:
            return
        zombie = Trainer(seat.binary, seat.slot, seat.folder)
        seat.signal(signal.SIGSTOP)
        zombie.child, seat.child = seat.child, None
        cluster.zombies.append(zombie)
        seat.start_at = 0.0
        cluster.await_rounds()
        zombie.signal(signal.SIGCONT)
        cluster.wait(lambda: zombie not in cluster.zombies, "a zombie to be fenced")

    def strike_failpoint(self) -> None:
        self.next_failpoint = (self.next_failpoint + 1) % len(self.failpoints)
        self.die_at(self.failpoints[self.next_failpoint])

    def strike_disk_error(self) -> None:
        """A write or flush fails; the server ends at once and is started again. The codes are those
        that writes have: file_error.cc."""
        cluster = self.cluster
        point = self.rng.choice([n for n in self.failpoints if n.startswith(("log.", "slots."))])
        code = self.rng.choice(("INTERNAL", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED"))
        server = self.rng.choice(cluster.servers)
        cluster.kill(server)
        server.failpoints = f"{point}={self.rng.choice((1, 3, 10))}*off->1*return({code})"
        cluster.forgiven.add(server.name)
        starts, failures = server.starts, cluster.storage_failures
        cluster.wait(lambda: server.starts > starts, "a server's start")
        deadline = time.monotonic() + 2 * PROVOKE_S
        while cluster.storage_failures == failures and time.monotonic() < deadline:
            cluster.pump()
            time.sleep(POLL_S)
        if cluster.storage_failures == failures:  # It is not reached in normal rounds.
            cluster.kill(server)
        cluster.forgiven.discard(server.name)

    def strike_damage(self) -> None:
        """A bit of a server's files turns around while it is down. It may continue with the right
        bits or refuse by name; then its files are put back."""
        cluster = self.cluster
        server = self.rng.choice(cluster.servers)
        server.wanted = False
        cluster.kill(server)
        kept = self.folder / "kept"
        shutil.copytree(server.data, kept)
        where = flip_a_bit(server.data, self.rng)
        cluster.damaged, cluster.noticed = server, ""
        server.wanted = True
        base = cluster.round()
        cluster.wait(lambda: cluster.noticed
                     or min(t.done() for t in cluster.trainers) >= base + 2, f"word of {where}")
        self.damages += 1
        if cluster.noticed:
            self.damages_refused += 1
            self.say(f"refused: {where}: {cluster.noticed[:160]}")
            server.wanted = False
            cluster.kill(server)
            shutil.rmtree(server.data)
            shutil.copytree(kept, server.data)
            server.wanted = True
            cluster.await_rounds()
        cluster.damaged = None
        shutil.rmtree(kept)

    def strike_full_disk(self) -> None:
        """The last server's disk is full while a new epoch must be written; then it is not."""
        cluster, server = self.cluster, self.cluster.servers[-1]
        filler = server.data.parent / "filler"
        cluster.forgiven.add(server.name)
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        cluster.kill(self.rng.choice(cluster.trainers))
        cluster.pass_time(self.rng.uniform(0.2, 1.5))
        filler.unlink()
        cluster.await_rounds()
        cluster.forgiven.discard(server.name)

    # --- Failpoints

    def die_at(self, name: str) -> None:
        """Makes a server die at a failpoint, whatever that takes."""
        cluster = self.cluster
        server = self.rng.choice(cluster.servers)
        if name.startswith("job."):
            self.die_at_a_jobs_start(server, name)
            return
        hits = 0 if name.startswith("recovery.") else self.rng.choice((0, 0, 1, 2, 7))
        if name.startswith(("seal.", "epoch.", "record.")):
            hits = 0
        before = cluster.failpoints_hit.get(name, 0)
        cluster.arm(server, f"{name}={hits}*off->kill" if hits else f"{name}=kill", name)
        provoked = time.monotonic() + PROVOKE_S
        deadline = time.monotonic() + HANG_S
        while cluster.failpoints_hit.get(name, 0) == before:
            cluster.pump()
            time.sleep(POLL_S)
            if time.monotonic() > provoked and server.alive():
                cluster.kill(self.rng.choice(cluster.trainers))  # A new epoch.
                provoked = time.monotonic() + 3 * PROVOKE_S
            if time.monotonic() > deadline:
                raise Red(f"server {server.number} never came past failpoint {name}")

    def die_at_a_jobs_start(self, server: Server, name: str) -> None:
        """The job ends, and the next one meets a server that dies while making it."""
        cluster = self.cluster
        self.end_job()
        terms = f"{name}=1*kill"
        if name.endswith("_remove"):  # What could not be made is removed.
            terms += ";job.before_create=1*return(RESOURCE_EXHAUSTED)"
        before = cluster.failpoints_hit.get(name, 0)
        starts = server.starts
        cluster.arm(server, terms, name)
        cluster.wait(lambda: server.starts > starts and server.ready(), "an armed server")
        self.begin_job()
        cluster.wait(lambda: cluster.failpoints_hit.get(name, 0) > before, f"failpoint {name}")

    # --- The run

    def strikes(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            (5, self.strike_one_server), (5, self.strike_one_trainer), (4, self.strike_some),
            (2, self.strike_all_servers), (1, self.strike_all_trainers),
            (2, self.strike_everyone), (3, self.strike_again_and_again), (2, self.strike_stop),
            (1, self.strike_zombie), (6, self.strike_failpoint), (1, self.strike_disk_error),
            # Damage to files at rest would be found at the end only.
            (int(self.snapshots is None), self.strike_damage),
            (int(self.small_disk), self.strike_full_disk),
        ]

    def strike(self) -> None:
        weights, kinds = zip(*self.strikes(), strict=True)
        kind = self.rng.choices(kinds, weights)[0]
        self.perform(kind, kind.__name__.removeprefix("strike_"))

    def perform(self, kind: Callable[[], None], name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        self.cluster.pass_time(self.rng.uniform(0, 0.15))
        begin = time.monotonic()
        kind()
        self.cluster.await_rounds()
        self.pauses.append(time.monotonic() - begin)
        cluster = self.cluster
        self.say(f"{name}: {cluster.kills} kills, round {cluster.round()}, "
                 f"{1000 * self.pauses[-1]:.0f} ms")

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begun:7.1f} s] {text}", file=sys.stderr, flush=True)

    def over(self) -> bool:
        if self.options.minutes is not None:
            return time.monotonic() - self.begun >= 60 * self.options.minutes
        return self.cluster.kills >= self.options.kills

    def run(self) -> None:
        self.start_servers()
        self.begin_job()
        self.cluster.await_rounds()
        if self.options.failpoints:
            for name in self.failpoints:
                self.perform(lambda name=name: self.die_at(name), name)
        next_job = KILLS_PER_JOB
        while not self.options.failpoints and not self.over():
            self.strike()
            if self.cluster.kills >= next_job:
                next_job += KILLS_PER_JOB
                self.end_job()
                self.begin_job()
                self.cluster.await_rounds()
        self.end_job()
        if self.snapshots is not None:
            self.snapshots.finish()

    # --- The result

    def lines(self, word: str) -> list[int]:
        """The numbers after `word` at the beginning of a line of any trainer."""
        found = []
        for trainer in self.cluster.trainers:
            for line in trainer.output().read_text().splitlines():
                words = line.split()
                if len(words) > 1 and words[0] == word:
                    found.append(int(words[1]))
        return found

    def result(self, red: str) -> dict:
        pauses = sorted(1000 * p for p in self.pauses) or [0.0]

        def share(part: float) -> float:
            return round(pauses[min(len(pauses) - 1, int(part * len(pauses)))], 1)

        return {
            "kills": self.cluster.kills,
            "rounds": self.rounds,
            "rounds_lost": sum(self.lines("lost")),
            "uploads": sum(self.lines("uploads")),
            "differing_bits": sum(self.lines("differs")),
            "restarts_by_hand": len(self.cluster.by_hand),
            "seconds": round(time.monotonic() - self.begun, 1),
            "seed": self.options.seed,
            "servers": self.options.servers,
            "trainers": self.options.trainers,
            "durability": self.options.durability,
            "tier": self.options.tier,
            "jobs": self.jobs,
            "strikes": dict(sorted(self.counts.items())),
            "zombies_fenced": self.cluster.fenced,
            "storage_failures": self.cluster.storage_failures,
            "damages": self.damages,
            "damages_refused": self.damages_refused,
            "snapshots": self.snapshots.counts if self.snapshots is not None else {},
            "failpoints": len(self.failpoints),
            "failpoints_hit": dict(sorted(self.cluster.failpoints_hit.items())),
            "pauses_ms": {"p50": share(0.5), "p99": share(0.99), "max": round(pauses[-1], 1)},
            "red": red,
        }


def positive(kind: type) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return read


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="build folder with bin/ballastd")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--kills", type=positive(int), help="how many processes to kill")
    length.add_argument("--minutes", type=positive(float), help="how long to continue")
    length.add_argument("--failpoints", action="store_true", help="each failpoint once")
    parser.add_argument("--servers", type=positive(int), default=2)
    parser.add_argument("--trainers", type=positive(int), default=2)
    parser.add_argument(
        "--seed", type=positive(int), default=None, help="drawn and printed when left out"
    )
    parser.add_argument("--durability", choices=("power", "process"), default="power")
    parser.add_argument(
        "--tier", choices=("dram", "nvme"), default="dram",
        help="nvme: servers keep a few extents of the state in memory, the rest in their slots",
    )  # fmt: skip
    parser.add_argument(
        "--optimizer", choices=KINDS, default="drawn", help="of all jobs; else the seed draws it"
    )
    parser.add_argument(
        "--snapshots", action="store_true",
        help="take, fork, export and delete them beside the strikes",
    )
    parser.add_argument("--think-us", type=int, default=2000, help="of a trainer, per round")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a green run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    return options


def main() -> int:
    options = parse()
    folder = Path(tempfile.mkdtemp(prefix="ballast-storm-"))
    print(f"kill storm, seed {options.seed}, in {folder}", file=sys.stderr, flush=True)
    if refusal := enter_own_network():
        print(f"its ports are shared with others; {refusal}", file=sys.stderr, flush=True)
    storm = Storm(options, folder)
    red = ""
    try:
        storm.run()
    except Red as found:
        red = str(found)
    finally:
        storm.cluster.stop_servers()
    result = storm.result(red)
    wrong = red or result["rounds_lost"] or result["differing_bits"] or result["restarts_by_hand"]
    if not wrong and result["rounds"] > 500 and not result["uploads"]:
        wrong = red = "no round was an upload"
    if wrong:
        print(f"RED: {red}\nseed {options.seed}; logs: {folder}", file=sys.stderr, flush=True)
    elif not options.keep:
        unmount_small_disk(folder / "small")
        shutil.rmtree(folder)
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
