"""TLS handshakes that fail: each is closed and counted by its cause, and the log stays short.

One that takes too long is in test_tokens.py.

Comes from: pytest. Goes to: dev-ca.sh, ballastd.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from dev_ca import dev_ca
from e2e.cluster import wait_for
from e2e.one_server import OneServer

EACH = 8
# The beginning of a hello that never comes whole.
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)


@pytest.fixture
def folders(tmp_path) -> dict[str, Path]:
    """`live`: the server's; `expired`: of the same authority; `other`: of another one."""
    live = dev_ca(tmp_path / "live", 1)
    (tmp_path / "expired").mkdir()
    for name in ("ca.pem", "ca.key"):
        shutil.copy(live / name, tmp_path / "expired" / name)
    return {
        "live": live,
        "expired": dev_ca(tmp_path / "expired", 1, "--days", 0),
        "other": dev_ca(tmp_path / "other", 1),
    }


def context(trusts: Path, shows: Path | None, protocol: str = "h2") -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(trusts / "ca.pem")
    made.set_alpn_protocols([protocol])
    if shows is not None:
        made.load_cert_chain(shows / "trainer-default.pem", shows / "trainer-default.key")
    return made


def shake(stranger: socket.socket, with_context: ssl.SSLContext) -> None:
    """Until the server has closed the connection, or this end does not want it."""
    with contextlib.suppress(OSError):
        with with_context.wrap_socket(stranger, server_hostname="localhost") as secured:
            while secured.recv(4096):
                pass


def strangers(folders: dict[str, Path]) -> dict[str, Callable[[socket.socket], None]]:
    """By cause, a stranger's behaviour."""
    live = folders["live"]
    contexts = {
        "no_certificate": context(live, None),
        "unknown_authority": context(live, folders["other"]),
        "expired": context(live, folders["expired"]),
        "refused_by_client": context(folders["other"], live),
        "protocol": context(live, live, "http/1.1"),
    }
    acts = {cause: lambda s, c=one: shake(s, c) for cause, one in contexts.items()}
    return acts | {"left": lambda s: s.sendall(HALF_A_HELLO)}


def lines(log: str, cause: str) -> int:
    return sum("TLS handshakes failed" in line and f'cause="{cause}"' in line
               for line in log.splitlines())


def tls_flags(live: Path) -> list[str]:
    files = {"ca": "ca.pem", "certificate": "server-0.pem", "key": "server-0.key"}
    flags = ["--set", "security.mode=tls"]
    for key, name in files.items():
        flags += ["--set", f"security.{key}={live / name}"]
    return flags


def test_a_failed_handshake_is_counted_by_its_cause(ballastd, tmp_path, folders):
    live = folders["live"]
    with OneServer(ballastd, tmp_path, *tls_flags(live)) as server:

        def failed(cause: str) -> float:
            return server.metric(f'ballast_handshake_failures_total{{cause="{cause}"}}')

        acts = strangers(folders)
        for cause, act in acts.items():
            for _ in range(EACH):
                with server.connect() as stranger:
                    act(stranger)
            wait_for(lambda c=cause: failed(c) >= EACH, f"{EACH} of {cause}")
        # Not "slow": one of the server's own probes may be that, on a loaded machine.
        expected = dict.fromkeys(acts, EACH) | {"bad_certificate": 0, "other": 0}
        assert {cause: failed(cause) for cause in expected} == expected
        # The line comes after the counter, and again after a minute with more of its cause.
        for cause in acts:
            wait_for(lambda c=cause: lines(server.log, c) > 0, f"the line of {cause}")
            assert lines(server.log, cause) < EACH
        shows = ["--tls-ca", live / "ca.pem", "--tls-cert", live / "admin.pem"]
        shows += ["--tls-key", live / "admin.key"]
        assert server.ctl("status", *map(str, shows)).returncode == 0
