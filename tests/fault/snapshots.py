"""Snapshots during the strikes of a kill storm: taken, verified, forked, exported and deleted, of
the job that runs and of one that rests, and exports imported, by one ballastctl at a time, refused
whenever a server is down.

An acknowledged result must exist at the end, and a deleted one must not. A restored job and a fork
of every remaining snapshot must have its bits, and so must every fork and every import made during
the storm, even without its snapshot now. No export is left half written.

Comes from: kill_storm.py. Goes to: ballastctl, and the parts on disk. Thread safety: one thread.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import time
from pathlib import Path

from cluster import HANG_S, Cluster, Red
from processes import clean_environment, end_with_the_driver

KEPT = 3  # snapshots, and forks, beyond which some are deleted
Name = tuple[str, str]  # job, snapshot


def states(directory: Path) -> dict[int, str]:
    """A digest of the state of every extent in the parts of a snapshot (docs/formats/images.md)."""
    found = {}
    for part in directory.glob("part-*"):
        content, at = part.read_bytes(), 4096
        while at < len(content):
            extent, payload, chunks = (
                int.from_bytes(content[at + place : at + place + size], "little")
                for place, size in ((40, 4), (64, 8), (72, 4))
            )
            begin = at + -(-(100 + 4 * chunks) // 4096) * 4096
            found[extent] = hashlib.sha256(content[begin : begin + payload]).hexdigest()
            at = begin + -(-payload // 4096) * 4096
    return found


class Snapshots:
    def __init__(self, cluster: Cluster, folder: Path, rng: random.Random) -> None:
        self.cluster, self.folder, self.rng = cluster, folder, rng
        self.ballastctl = str(Path(cluster.options.bin) / "bin" / "ballastctl")
        self.jobs: list[str] = []  # the last one runs
        self.whole: set[Name] = set()  # acknowledged
        self.unclear: set[Name] = set()  # asked for, or to go, without an answer
        # Acknowledged forks and imports, and their initial state.
        self.forks: dict[str, dict[int, str]] = {}
        self.exports: dict[str, dict[int, str]] = {}  # acknowledged, and their contents
        self.counts = {
            "taken": 0, "verified": 0, "forked": 0, "exported": 0, "imported": 0, "deleted": 0,
            "refused": 0, "compared": 0,
        }  # fmt: skip
        self.asked = 0
        self.child: subprocess.Popen | None = None
        self.command: list[str] = []
        self.begun = self.start_at = 0.0

    def pump(self) -> None:
        """Begins a command when none is under way, and takes the answer of an ended one."""
        if self.child is None:
            if self.jobs and time.monotonic() >= self.start_at:
                self.start(self.choose())
        elif self.child.poll() is not None:
            child, self.child = self.child, None
            self.answer(child.returncode, child.stderr.read())
            self.start_at = time.monotonic() + self.rng.uniform(0, 0.3)
        elif time.monotonic() > self.begun + HANG_S:
            raise Red(f"{' '.join(self.command)} has no answer after {HANG_S:.0f} s")

    def choose(self) -> list[str]:
        self.asked += 1
        create = ["snapshot", "create", self.rng.choice(self.jobs[-2:]), f"s{self.asked}"]
        if len(self.forks) > KEPT:
            return ["jobs", "delete", self.rng.choice(sorted(self.forks))]
        if not self.whole:
            return create
        one = self.rng.choice(sorted(self.whole))
        if len(self.whole) > KEPT:
            return ["snapshot", "delete", *one]
        fork = ["snapshot", "fork", *one, "--as", f"fork-{self.asked}"]
        export = ["export", one[0], "--snapshot", one[1], "--name", f"export-{self.asked}"]
        commands = [create, create, fork, fork, ["snapshot", "verify", *one], export + ["--state"]]
        if self.exports:
            name = self.rng.choice(sorted(self.exports))
            commands += 2 * [["import", name, "--as", f"import-{self.asked}"]]
        return self.rng.choice(commands)

    def start(self, command: list[str]) -> None:
        self.command, self.begun = command, time.monotonic()
        words = [self.ballastctl, *command, "--endpoint", self.cluster.servers[0].address]
        self.child = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=clean_environment(), preexec_fn=end_with_the_driver,
        )  # fmt: skip

    def answer(self, code: int, words: str) -> None:
        if self.command[0] in ("export", "import"):
            return self.answer_exchange(code, words)
        verb, about = self.command[1], (self.command[2], self.command[-1])
        if "damaged" in words or "STATE_LOST" in words or "lacks" in words:
            raise Red(f"{' '.join(self.command)}: {words}")
        if verb == "fork":
            about = (self.command[2], self.command[3])
        self.counts["refused"] += code != 0
        if self.command[0] == "jobs":  # Refused or not, nothing more is asked of it.
            del self.forks[self.command[2]]
        elif verb == "create":
            (self.unclear if code else self.whole).add(about)
            self.counts["taken"] += code == 0
        elif verb == "delete":
            self.whole.discard(about)
            if code:
                self.unclear.add(about)
            self.counts["deleted"] += code == 0
        elif verb == "verify":
            self.counts["verified"] += code == 0
        elif code == 0:  # A fork; the snapshot stays until it is asked to go, here.
            self.forks[self.command[5]] = self.states_of(about)
            self.counts["forked"] += 1

    def answer_exchange(self, code: int, words: str) -> None:
        command = self.command
        if "BAD_ARGUMENT" in words or "STATE_LOST" in words:
            raise Red(f"{' '.join(command)}: {words}")
        self.counts["refused"] += code != 0
        if code:
            return
        if command[0] == "import":
            self.forks[command[3]] = self.exports[command[1]]
            self.counts["imported"] += 1
            return
        self.exports[command[5]] = self.states_of((command[1], command[3]))
        self.counts["exported"] += 1
        if len(self.exports) > KEPT:
            oldest = min(self.exports, key=lambda name: int(name.split("-")[1]))
            del self.exports[oldest]
            shutil.rmtree(self.folder / "exports" / oldest)

    # --- At the end, when nobody is struck any more

    def ask(self, *words: str) -> str:
        """Until it is done: freshly started servers may ask for another try."""
        deadline = time.monotonic() + HANG_S
        while True:
            try:
                done = subprocess.run(
                    [self.ballastctl, *words, "--endpoint", self.cluster.servers[0].address],
                    capture_output=True, text=True, env=clean_environment(), timeout=HANG_S,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise Red(f"{' '.join(words)} has no answer after {HANG_S:.0f} s") from None
            if done.returncode == 0:
                return done.stdout
            if time.monotonic() > deadline or "damaged" in done.stderr:
                raise Red(f"{' '.join(words)}: {done.stderr}")
            self.cluster.pass_time(0.1)

    def listed(self) -> dict[Name, Path]:
        all_of_them = json.loads(self.ask("snapshot", "list", "-o", "json"))["snapshots"]
        return {(one["job"], one["name"]): self.folder / one["id"] for one in all_of_them}

    def states_of(self, name: Name) -> dict[int, str]:
        """Of an acknowledged snapshot: its parts do not change, and the home may be down."""
        for manifest in self.folder.glob("*/MANIFEST"):
            try:
                content = manifest.read_bytes()
            except FileNotFoundError:  # A deletion that had no answer is carried out now.
                continue
            texts = [len(text).to_bytes(4, "little") + text.encode() for text in reversed(name)]
            if content[32:].startswith(b"".join(texts)):
                return states(manifest.parent)
        raise Red(f"snapshot {name} was acknowledged, and is not in {self.folder}")

    def finish(self) -> None:
        self.jobs = []  # No further command.
        self.cluster.wait(lambda: self.child is None, "the last ballastctl")
        left = self.listed()
        if not self.whole <= left.keys() <= self.whole | self.unclear:
            raise Red(f"snapshots {sorted(left)} are there; {sorted(self.whole)} must be, "
                      f"{sorted(self.unclear)} may be")  # fmt: skip
        for name, directory in left.items():
            self.ask("snapshot", "verify", *name)
            wanted = states(directory)
            for verb in ("restore", "fork"):
                self.asked += 1
                new = f"end-{self.asked}"
                self.ask("snapshot", verb, *name, "--as", new)
                self.compare(new, wanted)
        for fork, wanted in sorted(self.forks.items()):
            self.compare(fork, wanted)
        for name, wanted in sorted(self.exports.items()):
            self.asked += 1
            self.ask("import", name, "--as", f"end-{self.asked}")
            self.compare(f"end-{self.asked}", wanted)
        # What nobody was told of may be whole, too.
        folder = self.folder / "exports"
        for export in folder.iterdir() if folder.exists() else ():
            if export.name.startswith(".quotas-"):
                continue
            if not (export / "job.ballast").exists() or (export / "EXPORTING").exists():
                raise Red(f"{export} was left half written")

    def compare(self, job: str, wanted: dict[int, str]) -> None:
        """A job that rests has the bits that it began with; it is removed."""
        self.ask("snapshot", "create", job, "end")
        if not wanted or states(self.listed()[(job, "end")]) != wanted:
            raise Red(f"job {job} has not the bits of the snapshot that it continues from")
        self.ask("snapshot", "delete", job, "end")
        self.ask("jobs", "delete", job)
        self.counts["compared"] += 1
