"""Idle connections, and work that repeats while something else is measured.

Comes from: load.py, load_shapes.py. Goes to: http2_by_hand.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

from e2e.http2_by_hand import Http2

# Addresses of loopback that strangers have in turn: 10,000 connections are 1,250 of each.
SOURCES = tuple(f"127.0.0.{last}" for last in range(2, 10))


def from_many_addresses(connect: Callable[[str], socket.socket]) -> Callable[[], socket.socket]:
    """connect: from an address."""
    sources = itertools.cycle(SOURCES)
    return lambda: connect(next(sources))


@contextlib.contextmanager
def in_background(work: Callable[[], object]) -> Iterator[None]:
    """Calls work() again and again until the block ends; raises its error then."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def loop() -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]


class IdleCrowd:
    """Connections that do nothing but answer the server's pings."""

    def __init__(self, connect: Callable[[], socket.socket], count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.open = 0
        for done in range(count):
            connection = connect()
            self._selector.register(connection, selectors.EVENT_READ, Http2(connection))
            self.open += 1
            if done % 20 == 19:
                self.answer(wait_s=0)

    def answer(self, wait_s: float = 0.1) -> None:
        for key, _ in self._selector.select(wait_s):
            try:
                key.data.read_what_came()
                # TLS may hold bytes that select does not see.
                while isinstance(key.fileobj, ssl.SSLSocket) and key.fileobj.pending():
                    key.data.read_what_came()
            except OSError:
                self._selector.unregister(key.fileobj)
                key.data.close()
                self.open -= 1

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.close()
        self._selector.close()
