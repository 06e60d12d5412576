"""Two tenants at two servers: each at its own limit, the refusals of one server, and sums through
kills in the middle of operations.

Comes from: pytest. Goes to: quota_books.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ballast
from dev_ca import dev_ca
from e2e.cluster import wait_for
from e2e.quota_books import SERVERS, Books, TwoTenants


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    return dev_ca(tmp_path_factory.mktemp("ca") / "pairs", 2, "--tenant", "a", "--tenant", "b")


@pytest.fixture
def servers(ballastd, tmp_path, certificates) -> Iterator[TwoTenants]:
    made = TwoTenants(ballastd, tmp_path, certificates)
    try:
        yield made
    finally:
        made.cluster.stop()


def test_each_of_two_tenants_is_refused_at_its_own_limit(servers):
    limits = {"a": 1, "b": 2}
    servers.allow(**{tenant: {"jobs": limit} for tenant, limit in limits.items()})
    for tenant, limit in limits.items():
        other = "ab".replace(tenant, "")
        for number in range(limit):
            servers.resting(tenant, f"job-{number}")  # Names that both have.
        before = servers.use()
        said = f'tenant "{tenant}" uses {limit} of {limit} jobs .* takes 1 more'
        with pytest.raises(ballast.OverQuota, match=said):
            servers.resting(tenant, "more")
        for server in SERVERS:
            assert used(servers, other, server) == counts(before[other, server])
            assert used(servers, tenant, server)["jobs"] == limit
            assert used(servers, tenant, server)["disk"] > 0
    whole = servers.use()
    for tenant, limit in limits.items():
        for party in ("viewer", "operator"):
            shown = servers.use(f"{party}-{tenant}")
            assert shown.keys() == {(tenant, server) for server in SERVERS}
            for place, line in shown.items():
                assert line["jobs"] == {"used": limit, "allowed": limit} == whole[place]["jobs"]
                assert line["disk"] == whole[place]["disk"]


def test_what_the_second_server_refuses_is_given_back_at_the_first(servers):
    servers.resting("a", "job")
    job = [used(servers, "a", server)["disk"] for server in SERVERS]
    for words in (("snapshot", "create", "job", "s"), ("export", "job", "--name", "e", "--state")):
        assert servers.ctl("operator-a", *words).returncode == 0
    before = [used(servers, "a", server) for server in SERVERS]
    there = [servers.jobs_on_disk(server) for server in SERVERS]
    for words in (("import", "e"), ("snapshot", "restore", "job", "s")):
        servers.allow(1, a={"disk": 2 * job[1] - 1})
        refused = servers.ctl("operator-a", *words, "--as", "new")
        assert refused.returncode == 1, refused.stdout
        told = f"uses {job[1]} of {2 * job[1] - 1} bytes of disk that it may use at server 1"
        assert told in refused.stderr, refused.stderr
        wait_for(lambda: before == [used(servers, "a", one) for one in SERVERS], "what it had")
        assert there == [servers.jobs_on_disk(server) for server in SERVERS]
        servers.allow(1, a={"disk": 2 * job[1]})
        made = servers.ctl("operator-a", *words, "--as", "new")
        assert made.returncode == 0, made.stderr
        for server in SERVERS:
            assert used(servers, "a", server)["disk"] == before[server]["disk"] + job[server]
        assert servers.ctl("operator-a", "jobs", "delete", "new").returncode == 0


def counts(line: dict[str, dict[str, int | None]]) -> dict[str, int]:
    return {resource: line[resource]["used"] for resource in ("jobs", "disk")}


def used(servers: TwoTenants, tenant: str, server: int) -> dict[str, int]:
    return counts(servers.use()[tenant, server])


def test_what_two_tenants_have_is_counted_to_the_byte_through_kills_in_operations(servers):
    books = Books(servers, seed=4)
    for operation, tenant, how in (
        ("create", "b", ""), ("extend", "a", ""), ("extend", "a", "point"), ("snapshot", "a", ""),
        ("again", "a", "point"), ("export", "a", "point"), ("remove", "b", "point"),
    ):  # fmt: skip
        books.do(operation, tenant, how)
    assert books.kills == 4
    books.end()


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_what_two_tenants_have_is_counted_to_the_byte_in_long_runs(servers, seed):
    books = Books(servers, seed)
    for step in range(60):
        books.step(("", "point", "moment")[step % 3])
    print(f"{books.made} done, {books.refused} refused, {books.kills} kills")
    assert books.refused > 0
    assert books.kills > 0
    books.end()
