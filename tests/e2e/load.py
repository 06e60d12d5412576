"""Load of strangers on one server while a neighbour's jobs run: prints what it measured.

    scripts/load.sh --connections 10000 --jobs 20 --json   # idle and garbage, plaintext
    scripts/load.sh --minutes 10 --json                    # the shapes of load_shapes.py, with TLS

Comes from: scripts/load.sh, test_load.py. Goes to: one ballastd on loopback that this starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from e2e.cluster import run_small_job, wait_for
from e2e.crowd import IdleCrowd, in_background
from e2e.load_shapes import LONG, SHAPES, Scale, Stage
from e2e.one_server import OneServer
from serving import built_ballastd

# What one idle connection may add to the server, in gRPC and in the accept loop.
CONNECTION_BYTES = 64 * 1024
# With TLS: OpenSSL's buffers and the certificates of both ends as well.
TLS_CONNECTION_BYTES = 192 * 1024
# What calls under way and malloc's reserve may add, however many connections there are.
CALLS_BYTES = 32 * 1024 * 1024
# For the crowd, which has one address.
_LIMITS = ("connections", "connections_per_address", "connections_per_second")
ROOM = [word for name in _LIMITS for word in ("--set", f"limits.max_{name}=20000")]


def babble(server: OneServer) -> None:
    with contextlib.suppress(OSError), server.connect() as stranger:
        stranger.sendall(b"\0" * 100)
        stranger.recv(1)


def timed_jobs(server: OneServer, count: int) -> list[float]:
    """Seconds of each of `count` jobs, whose results are checked."""
    seconds = []
    for _ in range(count):
        start = time.monotonic()
        run_small_job(server)
        seconds.append(time.monotonic() - start)
    return sorted(seconds)


def measure(server: OneServer, connections: int, jobs: int) -> dict[str, float]:
    alone = timed_jobs(server, jobs)
    descriptors, resident = server.descriptors, server.resident_bytes
    crowd = IdleCrowd(server.connect, connections)
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


def measure_shape(stage: Stage, name: str, scale: Scale, jobs: int) -> dict[str, object]:
    """Runs a neighbour's jobs alone and under one shape; asserts what the shape must not cost."""
    server = stage.server
    with stage.as_neighbour():
        alone = timed_jobs(server, jobs)
        descriptors, resident = server.descriptors, server.resident_bytes
        with SHAPES[name](stage, scale):
            attacked = timed_jobs(server, jobs)
            most, planned = server.resident_bytes, server.metric("ballast_memory_planned_bytes")
    assert server.process.poll() is None
    wait_for(lambda: server.descriptors <= descriptors + 4, "the descriptors to come back")
    connections = scale.connections if name == "idle and arriving" else 2 * scale.slots
    limit = 1.10 * (resident + planned) + connections * TLS_CONNECTION_BYTES + CALLS_BYTES
    assert most <= limit, f"{name}: {most} bytes are resident, the limit is {limit:.0f}"
    return {
        "shape": name,
        "resident_before_bytes": resident,
        "resident_most_bytes": most,
        "resident_limit_bytes": limit,
        "job_alone_slowest_s": alone[-1],
        "job_attacked_slowest_s": attacked[-1],
        "descriptors_before": descriptors,
        "descriptors_after": server.descriptors,
    }


def measure_shapes(minutes: float, jobs: int) -> list[dict[str, object]]:
    """All shapes in turn, in a new server each, until the time is over; each at least once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    end = time.monotonic() + 60 * minutes
    results = []
    while not results or time.monotonic() < end:
        for name in SHAPES:
            with tempfile.TemporaryDirectory() as folder:
                stage = Stage(built_ballastd(), Path(folder), *ROOM)
                with stage.server:
                    results.append(measure_shape(stage, name, LONG, jobs))
            print(f"{name}: done", file=sys.stderr)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--minutes", type=float, help="run the shapes with TLS for so long")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.minutes is not None:
        results = measure_shapes(options.minutes, options.jobs)
    else:
        with tempfile.TemporaryDirectory() as folder:
            with OneServer(built_ballastd(), Path(folder), *ROOM) as server:
                results = [measure(server, options.connections, options.jobs)]
    for result in results:
        text = "\n".join(f"{name}: {value}" for name, value in result.items())
        print(json.dumps(result) if options.json else text)


if __name__ == "__main__":
    main()
