"""Load of strangers on one server while a neighbour's jobs run: prints the measurements.

    scripts/load.sh --connections 10000 --jobs 20 --json   # idle and garbage, plaintext
    scripts/load.sh --minutes 10 --json                    # the shapes of load_shapes.py, with TLS

Comes from: scripts/load.sh, test_load.py. Goes to: one ballastd on loopback that this starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import conftest  # noqa: F401  # torch's settings, before torch is imported

from e2e.cluster import run_small_job, wait_for
from e2e.crowd import IdleCrowd, from_many_addresses, in_background
from e2e.load_shapes import LONG, PUSHED, SHAPES, Scale, Stage
from e2e.one_server import OneServer
from serving import built_ballastd

# The bytes that one idle connection may add to the server, in gRPC and in the accept loop.
CONNECTION_BYTES = 24 * 1024
# With TLS: OpenSSL's buffers and the certificates of both ends as well.
TLS_CONNECTION_BYTES = 112 * 1024
# A trainer's connection, its stream and the messages on it, without data in transit.
TRAINER_BYTES = 256 * 1024
# A trainer's gradients and weights in transit, in gRPC and in malloc's reserve, as a multiple of
# its push in a round; at most rounds.credit_bytes of gradients are.
ON_THE_WAY = 4
# The bytes that calls under way and malloc's reserve may add, for any number of connections.
CALLS_BYTES = 16 * 1024 * 1024
# For 10,000 connections and a few others; the limits of an address stay as they are.
ROOM = ["--set", "limits.max_connections=20000"]
# The clients of the long form, hundreds in one process, share the machine with the server.
LONG_TIME_SCALE = "10"


def babble(server: OneServer) -> None:
    with contextlib.suppress(OSError), server.connect() as stranger:
        stranger.sendall(b"\0" * 100)
        stranger.recv(1)


def timed_job(server: OneServer) -> float:
    """Seconds of a job whose result is checked."""
    start = time.monotonic()
    run_small_job(server)
    return time.monotonic() - start


def timed_jobs(server: OneServer, count: int) -> list[float]:
    """Seconds of each of `count` jobs, ascending."""
    return sorted(timed_job(server) for _ in range(count))


def p99(seconds: Sequence[float]) -> float:
    return round(sorted(seconds)[len(seconds) * 99 // 100], 4)


class Watch:
    """A server's memory and descriptors while jobs of a neighbour run."""

    def __init__(self, server: OneServer) -> None:
        self._server = server
        self.seconds: list[float] = []
        self.resident: list[int] = []
        self.descriptors: list[int] = []
        self.planned = 0.0  # the most
        # Of CPU, in processors: of this process, which has all clients, and of the server.
        self.client_cores = self.server_cores = 0.0

    def run(self, jobs: int, seconds: float) -> None:
        """Runs this number of jobs, and then others until this number of seconds is over."""
        begin = time.monotonic()
        end = begin + seconds
        clients, servers = time.process_time(), self._server.cpu_s
        while len(self.seconds) < jobs or time.monotonic() < end:
            self.seconds.append(timed_job(self._server))
            self.resident.append(self._server.resident_bytes)
            self.descriptors.append(self._server.descriptors)
            planned = self._server.metric("ballast_memory_planned_bytes")
            self.planned = max(self.planned, planned)
        took = time.monotonic() - begin
        self.client_cores = round((time.process_time() - clients) / took, 2)
        self.server_cores = round((self._server.cpu_s - servers) / took, 2)

    def resident_thirds(self) -> list[int]:
        """The most in each third of the jobs: a bounded value rises in the first ones only."""
        count = len(self.resident)
        thirds = [self.resident[count * k // 3 : max(1, count * (k + 1) // 3)] for k in range(3)]
        return [max(third, default=0) for third in thirds]


def measure(server: OneServer, connections: int, jobs: int) -> dict[str, float]:
    alone = timed_jobs(server, jobs)
    descriptors, resident = server.descriptors, server.resident_bytes
    crowd = IdleCrowd(from_many_addresses(server.connect), connections)
    with in_background(crowd.answer), in_background(lambda: babble(server)):
        attacked = timed_jobs(server, jobs)
        most = server.resident_bytes
    still_open = crowd.open
    crowd.close()
    wait_for(lambda: server.descriptors <= descriptors + 4, "the descriptors to come back")
    return {
        "connections": connections,
        "connections_kept": still_open,
        "garbage_refused": server.refused("garbage"),
        "resident_before_bytes": resident,
        "resident_most_bytes": most,
        "bytes_per_connection": (most - resident) / connections,
        "job_alone_slowest_s": alone[-1],
        "job_attacked_slowest_s": attacked[-1],
        "descriptors_before": descriptors,
        "descriptors_after": server.descriptors,
    }


def measure_shape(
    stage: Stage, name: str, scale: Scale, jobs: int, seconds: float = 0
) -> dict[str, object]:
    """Runs a neighbour's jobs alone and under one shape; asserts limits on the shape's cost.

    jobs: at least, alone and under the shape. seconds: how long the shape lasts, at least.
    """
    server = stage.server
    with stage.as_neighbour():
        alone = timed_jobs(server, jobs)
        descriptors, resident = server.descriptors, server.resident_bytes
        planned_before = server.metric("ballast_memory_planned_bytes")
        with SHAPES[name](stage, scale) as facts:
            attacked = Watch(server)
            attacked.run(jobs, seconds)
    assert server.process.poll() is None
    wait_for(lambda: server.descriptors <= descriptors + 4, "the descriptors to come back")
    result: dict[str, object] = {
        "shape": name,
        **facts,
        "machine_cores": len(os.sched_getaffinity(0)),
        "client_cores": attacked.client_cores,
        "server_cores": attacked.server_cores,
        "jobs": len(attacked.seconds),
        "job_alone_p99_s": p99(alone),
        "job_attacked_p99_s": p99(attacked.seconds),
        "resident_before_bytes": resident,
        "planned_before_bytes": planned_before,
        "planned_most_bytes": attacked.planned,
        "resident_most_bytes": max(attacked.resident),
        "resident_limit_bytes": limit_of(name, scale, resident, attacked.planned - planned_before),
        "resident_thirds_bytes": attacked.resident_thirds(),
        "resident_last_bytes": attacked.resident[-1],
        "resident_after_bytes": server.resident_bytes,
        "descriptors_before": descriptors,
        "descriptors_most": max(attacked.descriptors),
        "descriptors_after": server.descriptors,
    }
    assert result["resident_most_bytes"] <= result["resident_limit_bytes"], result
    return result


def limit_of(name: str, scale: Scale, resident: float, planned: float) -> float:
    """Bytes that a server may have in memory under a shape. resident: before; planned: since then,
    by its jobs."""
    strangers, trainers, on_the_way = {
        "idle and arriving": (scale.connections, 0, 0),
        "straggler": (0, scale.slots, 0),
        "stopped readers": (0, scale.readers, 0),
        "pushers": (0, scale.pushers, scale.pushers * ON_THE_WAY * 4 * PUSHED),
        "flooding tenant": (2 * scale.floods, 1, 0),
    }[name]
    sums = strangers * TLS_CONNECTION_BYTES + trainers * TRAINER_BYTES + on_the_way + CALLS_BYTES
    return round(1.10 * (resident + planned + sums))


def measure_shapes(minutes: float, jobs: int, names: Sequence[str]) -> Iterator[dict[str, object]]:
    """Runs the shapes one after the other, each in a new server, for `minutes` in all."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            stage = Stage(built_ballastd(), Path(folder), *ROOM, time_scale=LONG_TIME_SCALE)
            with stage.server:
                yield measure_shape(stage, name, LONG, jobs, 60 * minutes / len(names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--minutes", type=float, help="run the shapes with TLS for so long")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="this one, not all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    def show(result: dict[str, object]) -> None:
        text = "\n".join(f"{name}: {value}" for name, value in result.items())
        print(json.dumps(result) if options.json else text, flush=True)

    if options.minutes is not None:
        for result in measure_shapes(options.minutes, options.jobs, options.shape or list(SHAPES)):
            show(result)
    else:
        with tempfile.TemporaryDirectory() as folder:
            with OneServer(built_ballastd(), Path(folder), *ROOM) as server:
                show(measure(server, options.connections, options.jobs))


if __name__ == "__main__":
    main()
