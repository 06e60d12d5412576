"""Load of strangers on one server while a neighbour's jobs run: prints what it measured.

    scripts/load.sh --connections 10000 --jobs 20 --json

Comes from: scripts/load.sh, test_load.py. Goes to: one ballastd on loopback that this starts.
So far: idle connections that answer pings, and garbage on new ones. Without TLS.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import selectors
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from e2e.cluster import run_small_job, wait_for
from e2e.http2_by_hand import Http2
from e2e.one_server import OneServer
from serving import built_ballastd

# What one idle connection may add to the server, in gRPC and in the accept loop.
CONNECTION_BYTES = 64 * 1024


@contextlib.contextmanager
def in_background(work) -> Iterator[None]:
    """Calls work() again and again until the block ends."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class IdleCrowd:
    """Connections that do nothing but answer the server's pings."""

    def __init__(self, server: OneServer, count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.open = 0
        for done in range(count):
            connection = server.connect()
            self._selector.register(connection, selectors.EVENT_READ, Http2(connection))
            self.open += 1
            if done % 20 == 19:
                self.answer(wait_s=0)

    def answer(self, wait_s: float = 0.1) -> None:
        for key, _ in self._selector.select(wait_s):
            try:
                key.data.read()
            except OSError:
                self._selector.unregister(key.fileobj)
                key.data.close()
                self.open -= 1

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.close()
        self._selector.close()


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
    crowd = IdleCrowd(server, connections)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    flags = ["--set", "limits.max_connections_per_address=20000"]
    flags += ["--set", "limits.max_connections=20000"]
    flags += ["--set", "limits.max_connections_per_second=20000"]
    with tempfile.TemporaryDirectory() as folder:
        with OneServer(built_ballastd(), Path(folder), *flags) as server:
            result = measure(server, options.connections, options.jobs)
    text = "\n".join(f"{name}: {value:g}" for name, value in result.items())
    print(json.dumps(result) if options.json else text)


if __name__ == "__main__":
    main()
