"""Orders and votes of strangers: no server without security takes one (decision 047)."""

from __future__ import annotations

import socket

from ballast.control import Control
from e2e.cluster import Cluster, fresh_job, wait_for
from e2e.http2_by_hand import Http2
from e2e.small_run import Run

HOME, OTHER = 0, 1
DROP_JOB = "/ballast.v1.Peer/DropJob"
VOTE = "/ballast.v1.Peer/Vote"


def send(cluster: Cluster, server: int, method: str, message: bytes) -> None:
    """One call on a connection of its own. That stays until the server has written the refusal: a
    client that hangs up while the server still writes the end of a call may count as cancelled."""
    before = len(refusals_of(cluster, server, method))
    host, port = cluster.endpoints[server].rsplit(":", 1)
    stranger = Http2(socket.create_connection((host, int(port)), timeout=60))
    stranger.call(method, message)
    wait_for(lambda: len(refusals_of(cluster, server, method)) == before + 1, "a line of the audit")
    stranger.close()


def refusals_of(cluster: Cluster, server: int, method: str) -> list[str]:
    """Lines of the audit log."""
    line = '"audit":"refused","peer":"ipv4:127.0.0.1:'
    return [x for x in cluster.log(server).splitlines() if line in x and method in x]


def refused(cluster: Cluster, server: int) -> str:
    series = 'ballast_calls_refused_total{reason="number"} '
    lines = cluster.get(server, "/metrics").splitlines()
    return next((x for x in lines if x.startswith(series)), "")


def test_a_stranger_orders_nothing_and_votes_for_no_server(start_cluster):
    cluster = start_cluster(2)
    wait_for(lambda: f"peer is reachable server={HOME}" in cluster.log(OTHER), "the home to answer")
    run = Run(cluster, fresh_job(), 1)
    run.step(1)
    (job,) = Control(cluster.endpoints, 60.0).jobs()
    number = b"\x09" + int(job["job"], 16).to_bytes(8, "little")
    send(cluster, OTHER, DROP_JOB, number)
    send(cluster, OTHER, VOTE, number + bytes([0x10, 1, 0x18, 2, 0x20, HOME]))
    send(cluster, HOME, VOTE, number + bytes([0x10, 1, 0x18, 2, 0x20, OTHER]))
    assert refused(cluster, OTHER).endswith(" 2")
    assert refused(cluster, HOME).endswith(" 1")
    assert len(refusals_of(cluster, HOME, DROP_JOB)) == 0
    run.step(2)
    assert run.round == 3
    run.close()
