"""Bearer tokens: a trainer and an operator without a certificate, over TLS only.

Comes from: pytest. Goes to: dev-ca.sh, ballastd, ballast.torch, ballastctl.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import ballast
from dev_ca import dev_ca
from e2e.cluster import Cluster, fresh_job, wait_for
from e2e.one_server import OneServer
from e2e.small_run import Run

TOKENS = {"trainer": "a-token-of-a-trainer", "operator": "a-token-of-an-operator"}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """An authority, a file for each token, and the servers' list of them."""
    folder = dev_ca(tmp_path_factory.mktemp("files"), 1)
    lines = []
    for role, token in TOKENS.items():
        (folder / f"{role}.token").write_text(token + "\n")
        (folder / f"{role}.token").chmod(0o600)
        digest = hashlib.sha256(token.encode()).hexdigest()
        lines.append(f"sha256:{digest} spiffe://ballast/tenant/default/{role}\n")
    (folder / "tokens").write_text("".join(lines))
    (folder / "tokens").chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def cluster(ballastd, tmp_path_factory, files) -> Iterator[Cluster]:
    secured = Cluster(
        ballastd, 1, tmp_path_factory.mktemp("data"), certificates=files,
        BALLAST_SECURITY_TOKENS_FILE=str(files / "tokens"),
    )
    try:
        secured.wait_until_serving()
        yield secured
    finally:
        secured.stop()


def list_jobs(cluster: Cluster, *flags: str) -> subprocess.CompletedProcess:
    return ask(cluster, "jobs", "list", *flags)


def ask(cluster: Cluster, *words: str) -> subprocess.CompletedProcess:
    command = [cluster.binary.parent / "ballastctl", *words, "--endpoint", cluster.endpoints[0]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_trainer_and_an_operator_with_tokens_need_no_certificate(cluster, files, monkeypatch):
    monkeypatch.setenv("BALLAST_TLS_CA", str(files / "ca.pem"))
    monkeypatch.setenv("BALLAST_TOKEN_FILE", str(files / "trainer.token"))
    job = fresh_job()
    run = Run(cluster, job, 1)
    run.step(3)
    assert run.round == 3
    # The trainer's token, from the variables, may not see the servers; the flags win over them.
    assert ask(cluster, "status").returncode == 7
    assert ask(cluster, "status", f"--token-file={files}/operator.token").returncode == 0
    shown = list_jobs(cluster, f"--token-file={files}/operator.token")
    assert shown.returncode == 0, shown.stderr
    assert job in shown.stdout
    run.close()


def test_flags_name_a_certificate_in_place_of_the_variables(cluster, files, monkeypatch):
    monkeypatch.setenv("BALLAST_TLS_CA", str(files / "there-is-no-such-file"))
    flags = [f"--tls-{kind}={files}/{name}" for kind, name in
             (("ca", "ca.pem"), ("cert", "admin.pem"), ("key", "admin.key"))]
    shown = list_jobs(cluster, *flags)
    assert shown.returncode == 0, shown.stderr
    half = list_jobs(cluster, *flags[:2])
    assert half.returncode == 2
    assert "BALLAST_TLS_KEY is missing beside BALLAST_TLS_CERT" in half.stderr


def test_a_token_on_plaintext_is_refused_by_name(cluster, files):
    token = files / "trainer.token"
    with pytest.raises(ballast.BadArgument, match="token_file=.*a token travels over TLS only"):
        Run(cluster, fresh_job(), 1, token_file=str(token))
    refused = list_jobs(cluster, f"--token-file={token}")
    assert refused.returncode == 2
    assert f"{token}, but a token travels over TLS only" in refused.stderr


def test_a_token_that_others_may_read_is_refused_by_name(cluster, files, tmp_path):
    token = tmp_path / "open.token"
    token.write_text(TOKENS["trainer"])
    token.chmod(0o644)
    run = Run(cluster, fresh_job(), 1, tls_ca=str(files / "ca.pem"), token_file=str(token))
    with pytest.raises(ballast.BadArgument, match=r"open.token: has mode 0644.*chmod 0600 it"):
        run.step(1)


class Operated:
    """A server with every file that it reads again, which `folder` has, and the rights of roles."""

    def __init__(self, ballastd: Path, files: Path, folder: Path) -> None:
        self.files, self.folder = files, folder
        for name in ("ca.pem", "server-0.pem", "server-0.key", "tokens"):
            (folder / name).write_bytes((files / name).read_bytes())
            (folder / name).chmod(0o600)
        (folder / "denied").write_text("")
        (folder / "quotas.yaml").write_text("")
        config = folder / "server.yaml"
        config.write_text(
            "listen: {address: '127.0.0.1:0'}\nadmin: {address: '127.0.0.1:0'}\n"
            f"security: {{mode: tls, ca: {folder}/ca.pem, certificate: {folder}/server-0.pem, "
            f"key: {folder}/server-0.key, tokens_file: {folder}/tokens, "
            f"denied_file: {folder}/denied, quotas_file: {folder}/quotas.yaml}}\n"
        )
        self.server = OneServer(ballastd, folder, "--config", str(config))

    def code(self, role: str) -> int:
        return self.server.ctl("jobs", "list", f"--tls-ca={self.files}/ca.pem",
                               f"--token-file={self.files}/{role}.token").returncode

    def as_admin(self, *words: str) -> subprocess.CompletedProcess:
        return self.server.ctl(*words, f"--tls-ca={self.files}/ca.pem",
                               f"--tls-cert={self.files}/admin.pem",
                               f"--tls-key={self.files}/admin.key")

    def reload(self) -> dict[str, str | None]:
        """Of each file the error; the exit code says whether there is one."""
        said = self.as_admin("reload", "-o", "json")
        errors = {Path(file["path"]).name: file["error"]
                  for file in json.loads(said.stdout)["files"]}
        assert said.returncode == (0 if set(errors.values()) == {None} else 1), said.stderr
        return errors


@pytest.mark.parametrize(("broken", "how"), [
    ("", "change"), ("server.yaml", "hangup"), ("tokens", "change"), ("quotas.yaml", "reload"),
    ("server-0.pem", "reload"),
])
def test_a_revocation_takes_effect_whatever_else_is_broken(ballastd, files, tmp_path, broken, how):
    """By itself, by SIGHUP or by reload; the broken file's earlier contents stay in force."""
    operated = Operated(ballastd, files, tmp_path)
    with operated.server as server:
        assert (operated.code("operator"), operated.code("trainer")) == (0, 0)
        if broken:
            (tmp_path / broken).write_text("{")
        (tmp_path / "denied").write_text("spiffe://ballast/tenant/default/operator\n")
        if how == "hangup":
            server.process.send_signal(signal.SIGHUP)
        elif how == "reload":
            errors = operated.reload()
            assert len(errors) == 5
            assert errors.pop(broken)
            assert set(errors.values()) == {None}
        wait_for(lambda: operated.code("operator") == 7, "the refusal of a denied operator")
        assert operated.code("trainer") == 0


def test_health_names_a_list_that_is_not_in_force_until_it_is_mended(ballastd, files, tmp_path):
    operated = Operated(ballastd, files, tmp_path)
    with operated.server as server:
        (tmp_path / "tokens").write_text("{")
        wait_for(lambda: operated.as_admin("health").returncode == 6, "the fault in health")
        fault = f"security.tokens_file: {tmp_path}/tokens:1:1: "
        assert fault in operated.as_admin("health").stdout
        assert server.metric("ballast_files_at_fault") == 1
        assert server.log.count("what this file said before stays in force") == 1
        assert operated.reload()["tokens"]
        assert operated.code("trainer") == 0
        (tmp_path / "tokens").write_bytes((files / "tokens").read_bytes())
        wait_for(lambda: operated.as_admin("health").returncode == 0, "a mended list")
        assert server.metric("ballast_files_at_fault") == 0
        assert set(operated.reload().values()) == {None}


def test_a_list_of_tokens_at_fault_is_named_with_its_place(ballastd, files, tmp_path):
    listed = tmp_path / "tokens"
    config = tmp_path / "server.yaml"
    config.write_text(
        f"security:\n  mode: tls\n  ca: {files}/ca.pem\n  certificate: {files}/server-0.pem\n"
        f"  key: {files}/server-0.key\n  tokens_file: {listed}\n"
    )
    unknown_role = (files / "tokens").read_text().replace("/operator", "/wizard")

    def write(text: str, mode: int = 0o600) -> None:
        listed.write_text(text)
        listed.chmod(mode)

    def start() -> str:
        command = [ballastd, "--config", config, "--data-dir", tmp_path / "data"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1
        return ended.stderr

    place = f"server.yaml:6:16: security.tokens_file: {listed}:"
    assert f"{place} cannot be read" in start()
    write("", 0o644)
    assert f"{place} has mode 0644, so others may read or write this file" in start()
    write(unknown_role)
    assert f"{place}2:73: identity" in start()

    write((files / "tokens").read_text())
    with OneServer(ballastd, tmp_path, "--config", str(config)) as server:
        write(unknown_role)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: f"{place}2:73: identity" in server.log, "the mistake")
        flags = ["--tls-ca", files / "ca.pem", "--token-file", files / "operator.token"]
        shown = server.ctl("jobs", "list", *map(str, flags))
        assert shown.returncode == 0, shown.stderr


def test_a_handshake_that_stalls_is_closed_and_counted(ballastd, files, tmp_path):
    flags = ["security.mode=tls", f"security.ca={files}/ca.pem",
             f"security.certificate={files}/server-0.pem", f"security.key={files}/server-0.key"]
    sets = [word for flag in flags for word in ("--set", flag)]
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # its first bytes
    with OneServer(ballastd, tmp_path, *sets, BALLAST_TIME_SCALE="0.2") as server:
        with server.connect() as stranger:
            stranger.sendall(hello)
            assert stranger.recv(4096) == b""
        assert server.page("healthz")[0] == 200
        series = 'ballast_handshake_failures_total{cause="slow"}'
        # One of the server's own probes may be as slow, on a loaded machine.
        wait_for(lambda: server.metric(series) >= 1, "a handshake that took too long")
        line = "TLS handshakes failed"  # comes after the counter, then once a minute
        wait_for(lambda: server.log.count(line) >= 1, "its line in the log")
