"""Connections of strangers: too many, silent ones, and ones that speak something else.

None of them keeps a later client out, and none goes uncounted.
"""

from __future__ import annotations

import socket

import pytest

from e2e.cluster import wait_for
from e2e.one_server import OneServer

# A limit far below what 150 connections take.
DESCRIPTORS = 96
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)


def closed(stranger: socket.socket) -> bool:
    """Reads until the server has closed the connection."""
    try:
        while stranger.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def test_a_server_that_ran_out_of_descriptors_serves_again(ballastd, tmp_path):
    with OneServer(ballastd, tmp_path, descriptors=DESCRIPTORS) as server:
        before = server.descriptors
        strangers = [server.connect() for _ in range(150)]
        wait_for(lambda: server.refused("descriptors") > 0, "a connection too many")
        assert server.page("healthz")[0] == 200  # The files' share of the descriptors is free.
        for stranger in strangers:
            stranger.close()
        wait_for(lambda: server.descriptors <= before, "the descriptors to come back")
        done = server.status()
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "said, reason",
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "http1"),
        (b"\x00\x01\x02\x03", "garbage"),
        (TLS_HELLO, "tls"),
        (b"PRI * HT", "silent"),
        (b"", "silent"),
    ],
)
def test_a_stranger_is_closed_and_counted_by_reason(ballastd, tmp_path, said, reason):
    with OneServer(ballastd, tmp_path) as server:
        for _ in range(20):
            with server.connect() as stranger:
                stranger.sendall(said)
                if reason != "silent":
                    assert closed(stranger)
        if reason == "silent":
            with server.connect() as stranger:
                stranger.sendall(said)
                assert closed(stranger)
        expected = 1 if reason == "silent" else 20
        wait_for(lambda: server.refused(reason) >= expected, f"{expected} of {reason}")
        assert server.log.count("closed connections before they were served") <= 1
        assert server.status().returncode == 0


def test_an_address_has_no_more_connections_than_its_share(ballastd, tmp_path):
    flags = ["--set", "limits.max_connections_per_address=8"]
    with OneServer(ballastd, tmp_path, *flags) as server:
        strangers = [server.connect() for _ in range(30)]
        wait_for(lambda: server.refused("address") >= 22, "the connections too many")
        assert server.page("healthz")[0] == 200
        for stranger in strangers:
            stranger.close()
        wait_for(lambda: server.status().returncode == 0, "a place for the next client")


def test_healthz_says_when_the_listener_is_dead(ballastd, tmp_path):
    with OneServer(
        ballastd,
        tmp_path,
        BALLAST_FAILPOINTS="net.accept=return(UNAVAILABLE)",
        BALLAST_TIME_SCALE="0.2",
    ) as server:
        wait_for(lambda: server.page("healthz")[0] == 503, "a listener that is dead")
        assert "has not answered a new connection" in server.page("healthz")[1]
        assert server.metric("ballast_listener_accepts") == 0
