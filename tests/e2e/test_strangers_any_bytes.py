"""Hostile bytes from generators with fixed seeds: each call and each connection has an end of a
known kind, others are served, and little memory stays taken."""

from __future__ import annotations

import re
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random

import pytest

from e2e.any_bytes import MIB, STATUS, TOO_LONG, Body, any_frames, body, header_block, header_frames
from e2e.cluster import wait_for
from e2e.http2_by_hand import PREFACE, SETTINGS, Http2, frame
from e2e.one_server import OneServer

AT_MOST = 32 * MIB  # of memory that all of a test's bytes may leave
OK, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED = 0, 8, 12, 16
NO_TABLE = struct.pack(">HI", 1, 0)  # HPACK's: the server writes each header unchanged


@pytest.fixture(scope="module")
def server(ballastd, tmp_path_factory) -> Iterator[OneServer]:
    # The honest client reads, and so answers pings, only when it calls.
    flags = ("--set", "timing.keepalive_time=1h")
    with OneServer(ballastd, tmp_path_factory.mktemp("any-bytes"), *flags) as one:
        yield one
        assert one.process.poll() is None


@pytest.fixture
def bounded(server) -> Iterator[Http2]:
    """An honest client with a connection of its own, and the bounds on the others' cost."""
    honest = Http2(server.connect())
    honest.call(STATUS, b"")
    before = server.resident_bytes
    yield honest
    honest.call(STATUS, b"")
    honest.close()
    assert server.status().returncode == 0
    wait_for(lambda: server.resident_bytes - before < AT_MOST, "memory to be given back")


def status_of(trailers: bytes) -> int:
    """The code at the end of a call, of headers that no table has made shorter."""
    found = re.search(rb"grpc-status[\1\2](\d{1,2})", trailers)
    assert found, f"a call ended without a status: {trailers!r}"
    return int(found[1])


def answer(connection: socket.socket, frames: Iterable[bytes]) -> bytes:
    """Sends them, says that nothing more comes, and returns the server's bytes until it closes the
    connection."""
    got = b""
    with connection:
        try:
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
            for each in frames:
                connection.sendall(each)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 16):
                got += more
        except TimeoutError:
            raise
        except OSError:
            pass  # It has closed already, with bytes of ours unread.
    return got


def wanted(one: Body) -> set[int]:
    """The codes that the call may end with; empty: any."""
    if one.encoding in ("gzip", "deflate"):
        return {UNIMPLEMENTED}
    if len(one.content) < TOO_LONG or one.says != TOO_LONG:
        return set()
    return {RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED}


def test_bodies_that_are_compressed_too_long_or_not_as_long_as_they_say(server, bounded):
    random, ends, other = Random(1), Counter(), None
    for _ in range(600):
        one = body(random)
        other = other or Http2(server.connect(), NO_TABLE)
        try:
            other.call_of_bytes(one.method, one.bytes, one.encoding)
            code = status_of(other.trailers)
        except ConnectionError:
            code, other = None, None
        assert code in (wanted(one) or {code}), one
        ends[code] += 1
    assert ends[OK] and ends[RESOURCE_EXHAUSTED] and ends[UNIMPLEMENTED], ends


def many_connections(server: OneServer, honest: Http2, net: int, frames: Callable) -> int:
    """How many have had a call that ended. frames(): of one connection. Each is from an address of
    its own in 127.0.`net`.0: one whose connection is cut may not connect again at once."""
    answered = 0
    for number in range(1, 255):
        answered += b"grpc-status" in answer(server.connect(f"127.0.{net}.{number}"), frames())
        if number % 10 == 0:
            honest.call(STATUS, b"")
    return answered


def test_the_configuration_says_when_a_client_without_answers_is_cut(server, ballastd, tmp_path):
    """The server that all tests share pings after an hour, and another one soon."""
    kept = Http2(server.connect())
    kept.call(STATUS, b"")
    with OneServer(ballastd, tmp_path) as prompt, prompt.connect() as silent:
        silent.sendall(PREFACE + frame(SETTINGS, 0, 0))
        while silent.recv(1 << 16):
            pass
    kept.call(STATUS, b"")
    kept.close()


def test_header_blocks(server, bounded):
    random, cut = Random(1), server.refused("headers")

    def frames() -> Iterator[bytes]:
        for stream in range(1, 2 * random.choice((1, 3, 20)), 2):
            yield from header_frames(random, header_block(random), stream)

    answered = many_connections(server, bounded, 2, frames)
    assert answered > 50 and server.refused("headers") - cut > 10


def test_frames(server, bounded):
    random = Random(1)
    answered = many_connections(server, bounded, 3, lambda: any_frames(random))
    assert answered > 50
