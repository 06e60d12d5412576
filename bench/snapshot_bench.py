"""A snapshot's cost for concurrent rounds, and the speed of a job's export and import.

p99_ratio: the 99th percentile of round times while snapshots are taken, one after the other, over
    that of the rounds just before, without; the median of --blocks such pairs. One server, one
    trainer that computes as long as a round takes (sleeps: its processor would be another
    machine's, as would be that of ballastctl, which has niceness 19).
p99_control: the same of two blocks without snapshots, the later over the earlier, and p99_spread
    the largest of them over the smallest: the machine's own variation.
export_vs_disk: time of the disk's own loop over that of `ballastctl export --state` of a snapshot.
    The loop reads as many bytes as the snapshot has and, at the same time, writes as many as the
    export has, past the page cache, 8 MiB at a time, on 4 threads each, into a reserved file, and
    flushes.
import_vs_disk: the same for `ballastctl import`, whose loop writes as much as the new job's files
take:
    its slots, and its log, which is written once when a job is made.
Each ratio is the median of --repeats, whose two sides alternate. Results are verified: the imported
job has the bits of the exported one, and every snapshot is verified by its checksums.

Comes from: bench/snapshot_bench. Goes to: stdout (JSON), stderr (progress).
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

import ballast.torch as bt
from ballast.launcher.servers import Servers

ROOT = Path(__file__).resolve().parent.parent
BLOCK = 8 << 20
THREADS = 4
BARS = {"p99_ratio": 1.2, "export_vs_disk": 0.80, "import_vs_disk": 0.80}


def say(text: str) -> None:
    print(f"snapshot_bench: {text}", file=sys.stderr, flush=True)


class Rig:
    """A server, a job of `parameters` fp32 parameters, and ballastctl."""

    def __init__(self, folder: Path, parameters: int) -> None:
        binaries = ROOT / "build" / "release" / "bin"
        self.ctl_binary = str(binaries / "ballastctl")
        self.servers = Servers(binaries / "ballastd", 1, folder, None)
        self.servers.start(dict(os.environ), lambda: False)
        self.endpoints = self.servers.addresses
        self.folder = folder
        self.parameters = [torch.nn.Parameter(torch.randn(parameters // 16)) for _ in range(16)]
        self.optimizer = self.open("job", self.parameters)
        generator = torch.Generator().manual_seed(1)
        for p in self.parameters:
            p.grad = torch.randn(p.shape, generator=generator)

    def open(self, job: str, parameters: list[torch.nn.Parameter], **options) -> bt.AdamW:
        named = [(f"t{i}", p) for i, p in enumerate(parameters)]
        return bt.AdamW(named, lr=1e-3, endpoints=self.endpoints, job=job, world_size=1, rank=0,
                        durability="process", **options)  # fmt: skip

    def ctl(self, *arguments: str, niceness: int = 0) -> dict:
        command = ["nice", f"-n{niceness}", self.ctl_binary, *arguments]
        command += ["-o", "json", "--endpoint", self.endpoints[0]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return json.loads(done.stdout)

    def delete(self, job: str) -> None:
        command = [self.ctl_binary, "jobs", "delete", job, "--endpoint", self.endpoints[0]]
        subprocess.run(command, check=True, capture_output=True)

    def close(self) -> None:
        self.optimizer.close()
        self.servers.stop()


def rounds(rig: Rig, count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.monotonic()
        rig.optimizer.step()
        times.append(time.monotonic() - began)
        time.sleep(times[-1])
    return times


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98]


def measure_rounds(rig: Rig, count: int, blocks: int) -> dict:
    without: list[list[float]] = []
    beside: list[list[float]] = []
    taken = []

    def take(stop: threading.Event) -> None:
        while not stop.is_set():
            name = f"s{len(taken)}"
            taken.append(rig.ctl("snapshot", "create", "job", name, "--keep", "1", niceness=19))

    for block in range(blocks):
        rounds(rig, 10)  # The first one's work, or the last snapshot's leftovers.
        without.append(rounds(rig, count))
        stop = threading.Event()
        thread = threading.Thread(target=take, args=(stop,))
        thread.start()
        beside.append(rounds(rig, count))
        stop.set()
        thread.join()
        say(f"rounds, block {block + 1} of {blocks}: p99 {p99(without[-1]) * 1e3:.1f} ms without, "
            f"{p99(beside[-1]) * 1e3:.1f} ms with; {len(taken)} snapshots")  # fmt: skip
    rig.ctl("snapshot", "verify", "job", f"s{len(taken) - 1}")
    alone = [p99(block) for block in without]
    ratios = [p99(block) / a for block, a in zip(beside, alone, strict=True)]
    return {
        "p99_ratio": statistics.median(ratios),
        "p99_control": statistics.median(b / a for a, b in itertools.pairwise(alone)),
        "p99_spread": max(alone) / min(alone),
        "p99_repeats": ratios,
        "median_ratio": statistics.median(sum(beside, [])) / statistics.median(sum(without, [])),
        "round_ms_p99": statistics.median(alone) * 1e3,
        "round_ms_p50": statistics.median(sum(without, [])) * 1e3,
        "rounds": sum(len(block) for block in beside),
        "snapshots": len(taken),
    }


def raw_loop(folder: Path, read_bytes: int, write_bytes: int) -> float:
    """Seconds that the disk needs for this much, read and written at the same time."""
    source, target = folder / "raw-read", folder / "raw-write"
    with open(source, "wb") as file:
        for _ in range(read_bytes // BLOCK + 1):
            file.write(os.urandom(BLOCK))
        file.flush()
        os.fsync(file.fileno())
    from_fd = os.open(source, os.O_RDONLY | os.O_DIRECT)
    to_fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)

    def work(first: int, fd: int, total: int, call: Callable[..., int]) -> None:
        memory = mmap.mmap(-1, BLOCK)
        memory[:] = content
        for block in range(first, total // BLOCK + 1, THREADS):
            if block * BLOCK < total:
                call(fd, [memory], block * BLOCK)

    content = os.urandom(BLOCK)
    began = time.monotonic()
    os.posix_fallocate(to_fd, 0, write_bytes)
    threads = [
        threading.Thread(target=work, args=(i, fd, total, call))
        for i in range(THREADS)
        for fd, total, call in ((from_fd, read_bytes, os.preadv), (to_fd, write_bytes, os.pwritev))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.fsync(to_fd)
    took = time.monotonic() - began
    for fd, path in ((from_fd, source), (to_fd, target)):
        os.close(fd)
        path.unlink()
    return took


def measure_exchange(rig: Rig, repeats: int) -> dict:
    snapshot = rig.ctl("snapshot", "create", "job", "kept")["snapshots"][0]
    exports, imports, rates = [], [], []
    for i in range(repeats):
        began = time.monotonic()
        said = rig.ctl("export", "job", "--snapshot", "kept", "--state", "--name", f"e{i}")
        took = time.monotonic() - began
        raw = raw_loop(rig.folder, snapshot["bytes"], said["bytes"])
        exports.append(raw / took)
        rates.append((snapshot["bytes"] + said["bytes"]) / took)
        say(f"export {i + 1} of {repeats}: {took:.2f} s, the disk's own {raw:.2f} s")

        began = time.monotonic()
        (job,) = rig.ctl("import", f"e{i}", "--as", f"i{i}")["jobs"]
        took = time.monotonic() - began
        (job,) = rig.ctl("jobs", "show", f"i{i}")["jobs"]
        # Of two slots for each extent one is written.
        written = job["disk_bytes"] - snapshot["bytes"]
        raw = raw_loop(rig.folder, said["bytes"], written)
        imports.append(raw / took)
        say(f"import {i + 1} of {repeats}: {took:.2f} s, the disk's own {raw:.2f} s")
        shutil.rmtree(said["directory"])
        if i + 1 < repeats:
            rig.delete(f"i{i}")
    return {
        "export_vs_disk": statistics.median(exports),
        "import_vs_disk": statistics.median(imports),
        "export_bytes_per_s": statistics.median(rates),
        "export_repeats": exports,
        "import_repeats": imports,
    }


def differing_bits(rig: Rig, job: str) -> int:
    """Between the last imported job and the exported one."""
    copies = [torch.nn.Parameter(torch.zeros_like(p)) for p in rig.parameters]
    imported = rig.open(job, copies, resume="must")
    imported.attach()
    states = [opt.export_state()["state"] for opt in (rig.optimizer, imported)]
    imported.close()
    bits = 0
    for ours, theirs in zip(*(s.values() for s in states), strict=True):
        for key in ("master", "exp_avg", "exp_avg_sq"):
            a, b = (x[key].view(torch.int32) for x in (ours, theirs))
            if not torch.equal(a, b):
                bits += sum(bin(int(x)).count("1") for x in (a ^ b)[a != b])
        bits += int(ours["step"]) != int(theirs["step"])
    return bits


def main() -> int:
    parser = argparse.ArgumentParser(prog="snapshot_bench", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--path", type=Path, default=Path.cwd(), help="a folder on the disk")
    parser.add_argument("--parameters", type=int, default=64 << 20, help="of exports and imports")
    parser.add_argument("--round-parameters", type=int, default=8 << 20)
    parser.add_argument("--rounds", type=int, default=100, help="of a block")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=["rounds", "files"], help="measure these only")
    options = parser.parse_args()
    if options.blocks < 2:
        parser.error("--blocks must be at least 2: two without snapshots are the control")
    result: dict = {}
    for name, parameters in (("rounds", options.round_parameters), ("files", options.parameters)):
        if options.only not in (None, name):
            continue
        folder = Path(tempfile.mkdtemp(prefix="ballast-bench-", dir=options.path))
        rig = Rig(folder, parameters)
        try:
            if name == "rounds":
                result |= measure_rounds(rig, options.rounds, options.blocks)
            else:
                rig.optimizer.step()
                result |= measure_exchange(rig, options.repeats)
                result["differing_bits"] = differing_bits(rig, f"i{options.repeats - 1}")
        finally:
            rig.close()
            shutil.rmtree(folder)
    for key, bar in BARS.items():
        if key not in result:
            continue
        met = result[key] <= bar if key == "p99_ratio" else result[key] >= bar
        say(f"{key} {result[key]:.2f} (bar {bar}): {'met' if met else 'not met'}")
    # Rounds during snapshots raise where a snapshot or a round fails.
    result["verified"] = not result.get("differing_bits")
    if options.json:
        print(json.dumps(result))
    return 0 if result["verified"] else 1


if __name__ == "__main__":
    sys.exit(main())
