"""Messages of strangers: their cost is bounded before they are parsed, and returned."""

from __future__ import annotations

import contextlib

import pytest

from ballast.control import Control
from e2e.cluster import fresh_job, wait_for
from e2e.http2_by_hand import Http2
from e2e.one_server import OneServer
from e2e.small_run import Run

MIB = 1 << 20
ATTACH = "/ballast.v1.Control/Attach"
DROP_JOB = "/ballast.v1.Peer/DropJob"


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def empty_tensors(wire_bytes: int) -> bytes:
    """An AttachRequest of this protocol, nearly all of it empty tensors."""
    protocol = field(1, b"\x08\x01\x10\x01")
    return protocol + field(2, field(5, b"") * (wire_bytes // 2))


def handled(server: OneServer, method: str, code: str) -> float:
    service, _, name = method.removeprefix("/").partition("/")
    labels = f'grpc_type="unary",grpc_service="{service}",grpc_method="{name}",grpc_code="{code}"'
    return server.metric(f"grpc_server_handled_total{{{labels}}}")


def send(server: OneServer, method: str, message: bytes, code: str) -> None:
    """One call on a connection of its own. That stays until the server has counted the call: a
    client that hangs up while the server still writes the end of a call may count as cancelled."""
    before = handled(server, method, code)
    stranger = Http2(server.connect())
    stranger.call(method, message)
    wait_for(lambda: handled(server, method, code) == before + 1, f"a call to end as {code}")
    stranger.close()


@pytest.mark.parametrize("times", [1, 8])
def test_an_attach_of_empty_tensors_costs_what_its_bytes_cost(ballastd, tmp_path, times):
    with OneServer(ballastd, tmp_path) as server:
        before = server.resident_bytes
        for _ in range(times):
            send(server, ATTACH, empty_tensors(15 * MIB), "InvalidArgument")
        # The bytes themselves, and what malloc keeps at hand.
        assert server.resident_bytes - before < 60 * MIB


def test_what_a_large_manifest_took_is_given_back(ballastd, tmp_path):
    tensors = b"".join(
        field(5, field(1, b"a.name.of.a.tensor.%06d" % i) + field(2, b"\x08"))
        for i in range(250_000)
    )
    with OneServer(ballastd, tmp_path) as server:
        before = server.resident_bytes
        # A world of 0 is refused, after all of it has been parsed.
        message = field(1, b"\x08\x01\x10\x01") + field(2, tensors)
        send(server, ATTACH, message, "InvalidArgument")
        most = 4 * len(tensors) + 96 * MIB
        assert server.resident_bytes - before < len(tensors) + most
        wait_for(lambda: server.resident_bytes - before < 24 * MIB, "memory to be given back")


def test_another_protocol_is_refused_before_the_rest_is_looked_at(ballastd, tmp_path):
    with OneServer(ballastd, tmp_path) as server:
        message = field(1, b"\x08\x63\x10\x63") + field(2, field(5, b"") * 3_000_000)
        send(server, ATTACH, message, "FailedPrecondition")


def test_a_name_that_is_not_utf8_is_refused_without_a_line_in_the_log(ballastd, tmp_path):
    with OneServer(ballastd, tmp_path) as server:
        stranger = Http2(server.connect())
        for _ in range(3):
            stranger.call(ATTACH, field(1, b"\x08\x01\x10\x01") + field(2, field(1, b"\xff")))
        wait_for(lambda: handled(server, ATTACH, "InvalidArgument") == 3, "the refusals")
        stranger.close()
        assert "UTF-8" not in server.log


def test_a_method_without_a_manifest_takes_no_large_request(ballastd, tmp_path):
    with OneServer(ballastd, tmp_path) as server:
        stranger = Http2(server.connect())
        status = "/ballast.v1.Admin/Status"
        stranger.call(status, field(15, bytes(2 * MIB)))
        wait_for(lambda: handled(server, status, "InvalidArgument") == 1, "the refusal")
        stranger.call(status, b"")
        wait_for(lambda: handled(server, status, "OK") == 1, "the answer")
        stranger.close()


def test_a_refused_order_that_hangs_up_at_once_has_its_audit_line(ballastd, tmp_path):
    with OneServer(ballastd, tmp_path) as server:
        stranger = Http2(server.connect())
        for _ in range(5):
            stranger.call_and_hang_up(DROP_JOB)
        line = f'"method":"{DROP_JOB}","result":"PermissionDenied"'
        wait_for(lambda: server.log.count(line) == 5, "five lines")
        stranger.close()


def test_a_stranger_deletes_no_job_with_an_order_to_its_home(ballastd, tmp_path):
    with OneServer(ballastd, tmp_path) as server:
        run = Run(server, fresh_job(), 1)
        run.step(1)
        (job,) = Control(server.endpoints, 60.0).jobs()
        order = b"\x09" + int(job["job"], 16).to_bytes(8, "little")
        send(server, DROP_JOB, order, "PermissionDenied")
        run.step(1)
        assert run.round == 2
        run.close()


def test_messages_that_never_become_whole_stay_within_the_bound(ballastd, tmp_path):
    # Messages of strangers without answers to pings are kept, as if they answered.
    flags = ["limits.max_rpc_memory_bytes=64MiB", "timing.keepalive_time=1h"]
    with OneServer(ballastd, tmp_path, *(x for f in flags for x in ("--set", f))) as server:
        before = server.resident_bytes
        strangers = []
        sent = 0

        def one_more_has_sent() -> bool:
            nonlocal sent
            connection = server.connect()
            connection.settimeout(2)  # Where the server gives no room for more, it stays so.
            with contextlib.suppress(OSError):  # The server has closed the connection already.
                strangers.append(Http2(connection))
                sent += strangers[-1].send_part(ATTACH, 15 * MIB, 4 * MIB)
            return sent >= 240 * MIB

        wait_for(one_more_has_sent, "strangers who have sent 240 MiB", every_s=0)
        # Without the bound all of it is kept. Of the memory that the server freed for it, malloc
        # may keep some for a while.
        wait_for(lambda: server.resident_bytes - before < 128 * MIB, "memory within the bound")
        for stranger in strangers:
            stranger.close()
        wait_for(lambda: server.status().returncode == 0, "the next client to be served")
