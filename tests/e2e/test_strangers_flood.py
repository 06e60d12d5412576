"""Frames of strangers that gRPC 1.51 does not bound: the connection ends, and little is kept."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev_ca import dev_ca
from e2e.cluster import wait_for
from e2e.http2_by_hand import (
    CANCEL, CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM, SETTINGS,
    Http2, frame, headers,
)  # fmt: skip
from e2e.one_server import OneServer

MIB = 1 << 20
STATUS = "/ballast.v1.Admin/Status"
AT_MOST = 24 * MIB  # of memory that a flood may leave
SENT = 192 * MIB  # by a stranger whom nobody stops


@pytest.fixture(scope="module", params=["plaintext", "tls"])
def server(request, ballastd, tmp_path_factory) -> Iterator[OneServer]:
    """With TLS it takes tokens, so that a connection needs no certificate."""
    folder = tmp_path_factory.mktemp(request.param)
    sets: list[str] = []
    if request.param == "tls":
        files = dev_ca(folder / "ca", 1)
        tokens = files / "tokens"
        digest = hashlib.sha256(b"a-token-of-a-trainer").hexdigest()
        tokens.write_text(f"sha256:{digest} spiffe://ballast/tenant/default/trainer\n")
        tokens.chmod(0o600)
        values = {"mode": "tls", "ca": files / "ca.pem", "certificate": files / "server-0.pem",
                  "key": files / "server-0.key", "tokens_file": tokens}  # fmt: skip
        for key, value in values.items():
            sets += ["--set", f"security.{key}={value}"]
    with OneServer(ballastd, folder, *sets) as one:
        one.tls = request.param == "tls"
        # The one-time cost of the first call is not the flood's.
        with contextlib.suppress(ConnectionError), stranger(one) as connection:
            Http2(connection).call(STATUS, b"")
        yield one
        assert one.process.poll() is None


def stranger(server: OneServer) -> socket.socket:
    """A connection from an address without a cut one."""
    stranger.number += 1
    connection = server.connect(f"127.0.1.{stranger.number}")
    if not server.tls:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(connection)


stranger.number = 0


def endless_headers() -> Iterator[bytes]:
    """Headers, and then more of them without END_HEADERS."""
    yield frame(HEADERS, 0, 1, headers(STATUS))
    more = frame(CONTINUATION, 0, 1, (b"\0\5x-aaa\x64" + b"v" * 100) * 150)
    while True:
        yield more


def one_endless_name() -> Iterator[bytes]:
    """A header whose value has 512 MiB, as it says: gRPC copies the whole input so far at each
    read."""
    yield frame(HEADERS, 0, 1, headers(STATUS) + b"\0\5x-aaa\x7f\x81\xff\xff\xff\x01")
    while True:
        yield frame(CONTINUATION, 0, 1, b"v" * 16384)


def resets() -> Iterator[bytes]:
    """Streams opened and reset at once."""
    for number in range(1, 1 << 30, 200):
        yield b"".join(
            frame(HEADERS, END_HEADERS, stream, headers(STATUS))
            + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))
            for stream in range(number, number + 200, 2)
        )


def settings() -> Iterator[bytes]:
    """Each wants an answer. gRPC itself ends a connection that sends PING without end."""
    while True:
        yield frame(SETTINGS, 0, 0) * 200


@pytest.mark.parametrize(
    "flood, reason",
    [(endless_headers, "headers"), (one_endless_name, "headers"), (resets, "resets"),
     (settings, "controls")],
)  # fmt: skip
def test_a_connection_that_floods_is_cut_and_leaves_nothing(server, flood, reason):
    before, cut = server.resident_bytes, server.refused(reason)
    sent = 0
    with stranger(server) as connection, contextlib.suppress(OSError):
        connection.settimeout(5)
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
        for frames in flood():
            connection.sendall(frames)
            sent += len(frames)
            if sent >= SENT:
                break
    assert sent < SENT, "nobody stopped it"
    wait_for(lambda: server.refused(reason) == cut + 1, "the cut to be counted")
    assert server.resident_bytes - before < AT_MOST
    assert f'reason="{reason}"' in server.log


def test_a_client_that_gives_calls_up_now_and_then_is_not_cut(server):
    with stranger(server) as connection:
        http2 = Http2(connection)
        for _ in range(200):
            http2.call_and_hang_up(STATUS)
        http2.call(STATUS, b"")


def test_a_compressed_message_is_refused_before_it_is_inflated(server):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(bytes(MIB)) for _ in range(128)) + packer.flush()
    before = server.resident_bytes
    with stranger(server) as connection:
        http2 = Http2(connection)
        http2.call(STATUS, packed, compression="gzip")
        assert b"gzip" in http2.trailers, "it was refused for something else"
    assert server.resident_bytes - before < AT_MOST
