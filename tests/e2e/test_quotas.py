"""A tenant at its quota: the text of the refusal, the space freed by a delete, the count after a
restart.

Comes from: pytest. Goes to: ballastd with a quota file, ballast.torch, ballastctl.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import ballast
from e2e.cluster import fresh_job, wait_for
from e2e.one_server import OneServer
from e2e.small_run import Run

RESOURCES = ["jobs", "seats", "dram", "disk", "in_flight", "waiting_attaches"]


class Limited:
    """One server without security, so that all belongs to the tenant `default`."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.binary, self.folder = binary, folder
        self.quotas = folder / "quotas.yaml"
        self.quotas.write_text("")
        self.config = folder / "server.yaml"
        self.config.write_text(
            "listen: {address: '127.0.0.1:0'}\nadmin: {address: '127.0.0.1:0'}\n"
            f"security: {{quotas_file: '{self.quotas}'}}\n"
        )
        self.start()

    def start(self) -> None:
        (self.folder / "ready.json").unlink(missing_ok=True)
        self.server = OneServer(self.binary, self.folder, "--config", str(self.config))

    def kill_and_restart(self) -> None:
        self.server.process.kill()
        self.server.process.wait(60)
        self.start()

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [self.binary.parent / "ballastctl", *words, "--endpoint", self.server.endpoint]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def use(self) -> dict[str, dict[str, int | None]]:
        """Of the tenant `default`; without anything: zeros."""
        said = self.ctl("tenants", "-o", "json")
        assert said.returncode == 0, said.stderr
        lines = {line["tenant"]: line["resources"] for line in json.loads(said.stdout)["tenants"]}
        return lines.get("default", {key: {"used": 0, "allowed": None} for key in RESOURCES})

    def used(self, resource: str) -> int | None:
        return self.use()[resource]["used"]

    def allow(self, text: str, resource: str, limit: int | None) -> None:
        """Replaces the quota file and waits until the server has read it."""
        self.quotas.write_text(text)
        self.server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: self.use()[resource]["allowed"] == limit, f"{resource} of {limit}")

    def run(self) -> Run:
        made = Run(self.server, fresh_job(), 1)
        made.step(2)
        return made


@pytest.fixture
def limited(ballastd, tmp_path) -> Iterator[Limited]:
    limited = Limited(ballastd, tmp_path)
    with limited.server:
        yield limited
    limited.server.process.kill()
    limited.server.process.wait(60)


def job_of(run: Run) -> str:
    return run.trainers.optimizers[0].job


def test_a_tenant_at_its_quota_hears_both_numbers_and_a_deletion_makes_room(limited):
    limited.allow("tenants: {default: {jobs: 1}}\n", "jobs", 1)
    first = limited.run()
    before = limited.use()
    assert before["jobs"] == {"used": 1, "allowed": 1}
    assert before["seats"] == {"used": 1, "allowed": None}
    assert before["dram"]["used"] > 0
    assert before["disk"]["used"] > 0
    with pytest.raises(ballast.OverQuota, match="uses 1 of 1 jobs .* takes 1 more") as refused:
        limited.run()
    assert refused.value.reason == "OVER_QUOTA"
    assert limited.use() == before
    first.step(1)
    first.close()
    assert limited.ctl("jobs", "delete", job_of(first), "--force").returncode == 0
    assert {key: use["used"] for key, use in limited.use().items()} == dict.fromkeys(RESOURCES, 0)
    limited.run().close()


def test_a_killed_server_finds_the_same_sums_and_what_ran_goes_on_above_a_lower_quota(limited):
    run = limited.run()
    assert limited.ctl("snapshot", "create", job_of(run), "s").returncode == 0
    before = {key: use["used"] for key, use in limited.use().items()}
    limited.kill_and_restart()
    assert {key: use["used"] for key, use in limited.use().items()} == before
    limited.quotas.write_text("default: {jobs: 0, seats: 0, dram: 0, disk: 0, in_flight: 0}\n")
    limited.kill_and_restart()
    least = {key: use["used"] for key, use in limited.use().items()}
    assert 0 < least.pop("dram") <= before.pop("dram")  # above its quota: the least it needs
    assert least == before
    assert limited.use()["dram"]["allowed"] == 0
    assert job_of(run) in limited.ctl("jobs", "list").stdout
    with pytest.raises(ballast.OverQuota):
        limited.run()
    run.trainers.abandon()


def test_snapshots_restores_and_exports_count_and_are_given_back(limited):
    run = limited.run()
    job, alone = job_of(run), limited.used("disk")
    assert limited.ctl("snapshot", "create", job, "s").returncode == 0
    one = limited.used("disk") - alone
    assert one > 0
    # One byte less than a second snapshot, a fork, a restore or an export of the state needs.
    limited.allow(f"default: {{disk: {alone + one + 1}}}\n", "disk", alone + one + 1)
    for words in (
        ("snapshot", "create", job, "t"),
        ("snapshot", "restore", job, "s", "--as", "r"),
        ("snapshot", "fork", job, "s", "--as", "f"),
        ("export", job, "--name", "e", "--snapshot", "s"),
        ("export", job, "--name", "e"),
    ):
        said = limited.ctl(*words)
        assert said.returncode == 1, (words, said.stdout)
        assert f"uses {alone + one} of {alone + one + 1} bytes of disk" in said.stderr, said.stderr
        assert limited.used("disk") == alone + one, words
    assert limited.ctl("snapshot", "delete", job, "s").returncode == 0
    assert limited.used("disk") == alone
    assert limited.ctl("snapshot", "create", job, "t", "--keep", "1").returncode == 0
    assert limited.used("disk") == alone + one
    run.close()


def test_a_quota_file_with_a_mistake_is_named_and_changes_nothing(limited):
    limited.allow("tenants: {default: {jobs: 7}}\n", "jobs", 7)
    limited.quotas.write_text("default:\n  jobs: many\n")
    limited.server.process.send_signal(signal.SIGHUP)
    mistake = f"{limited.quotas}:2:9: jobs: expected a whole number or unlimited"
    wait_for(lambda: mistake in limited.server.log, mistake)
    assert limited.use()["jobs"]["allowed"] == 7
    limited.server.process.kill()
    limited.server.process.wait(60)
    ended = subprocess.run(
        [limited.binary, "--config", str(limited.config), "--data-dir", str(limited.folder / "d")],
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert ended.returncode != 0
    assert mistake in ended.stderr
