"""Jobs over TLS: the bits of a plaintext run, certificates that change while it runs, launches.

Comes from: pytest. Goes to: dev-ca.sh, ballastd, ballast.torch, ballast-run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ballast
from ballast.control import Control
from ballast.security import Security
from dev_ca import dev_ca
from e2e.cluster import Cluster, fresh_job, wait_for
from e2e.small_run import Run

ROUNDS = 200
SERVERS = 2
SECRET = 0o600


def replace(path: Path, text: str) -> None:
    """As a whole, as tools that renew certificates do."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.chmod(SECRET)
    temporary.replace(path)


def copy_pair(name: str, source: Path, target: Path) -> None:
    """Key and certificate in two steps: in between they do not belong together."""
    for kind in ("key", "pem"):
        replace(target / f"{name}.{kind}", (source / f"{name}.{kind}").read_text())


def trainer_files(folder: Path) -> dict[str, str]:
    return {
        "tls_ca": str(folder / "ca.pem"),
        "tls_cert": str(folder / "trainer-default.pem"),
        "tls_key": str(folder / "trainer-default.key"),
    }


def reloads(cluster: Cluster, server: int, result: str) -> int:
    page = cluster.get(server, "/metrics")
    return int(float(re.search(rf'tls_reloads_total{{result="{result}"}} (\S+)', page).group(1)))


def bits(tensors: list[torch.Tensor]) -> list[bytes]:
    return [tensor.contiguous().numpy().tobytes() for tensor in tensors]


@pytest.fixture(scope="module")
def plaintext(ballastd, tmp_path_factory) -> list[bytes]:
    """State after all rounds without TLS."""
    cluster = Cluster(ballastd, SERVERS, tmp_path_factory.mktemp("plain"))
    try:
        cluster.wait_until_serving()
        run = Run(cluster, fresh_job(), 2)
        run.step(ROUNDS)
        state = bits(run.state())
        run.close()
        return state
    finally:
        cluster.stop()


@pytest.fixture
def live(tmp_path) -> Path:
    """The files in use."""
    return dev_ca(tmp_path / "live", SERVERS)


@pytest.fixture
def cluster(ballastd, tmp_path, live) -> Iterator[Cluster]:
    (tmp_path / "data").mkdir()
    secured = Cluster(ballastd, SERVERS, tmp_path / "data", certificates=live)
    try:
        secured.wait_until_serving()
        yield secured
    finally:
        secured.stop()


def refuse_bad_files(cluster: Cluster, live: Path, tmp_path: Path, step) -> None:
    """Puts bad files at server 0, one after the other: rounds continue, and the log names each."""
    good = {kind: (live / f"server-0.{kind}").read_text() for kind in ("pem", "key")}
    expired = dev_ca_beside(live, tmp_path / "expired", "--days", 0)
    bad = {
        "damaged certificate|holds no certificate": ("pem", good["pem"][:200]),
        "is not the key of the certificate": ("key", (live / "admin.key").read_text()),
        "expired at": ("pem", (expired / "server-0.pem").read_text()),
    }
    for words, (kind, text) in bad.items():
        before = reloads(cluster, 0, "refused")
        if kind == "pem" and "expired" in words:
            replace(live / "server-0.key", (expired / "server-0.key").read_text())
        replace(live / f"server-0.{kind}", text)
        wait_for(lambda: re.search(words, cluster.log(0)) is not None, words)
        wait_for(lambda n=before: reloads(cluster, 0, "refused") > n, f"a refusal: {words}")
        step(5)
        before = reloads(cluster, 0, "loaded")
        for name, whole in good.items():
            replace(live / f"server-0.{name}", whole)
        wait_for(lambda n=before: reloads(cluster, 0, "loaded") > n, "the good files again")


def dev_ca_beside(live: Path, folder: Path, *options: object) -> Path:
    """Pairs of the same authority."""
    folder.mkdir()
    for name in ("ca.pem", "ca.key"):
        shutil.copy(live / name, folder / name)
    return dev_ca(folder, SERVERS, *options)


def change(cluster: Cluster, act) -> None:
    """Changes files, and waits until both servers have loaded them."""
    before = [reloads(cluster, server, "loaded") for server in range(SERVERS)]
    act()
    for server in range(SERVERS):
        wait_for(lambda s=server: reloads(cluster, s, "loaded") > before[s], f"server {server}")


def test_certificates_are_replaced_while_rounds_go_on(
    cluster, live, tmp_path, plaintext
):
    run = Run(cluster, fresh_job(), 2, **trainer_files(live))
    run.step(40)
    refuse_bad_files(cluster, live, tmp_path, run.step)
    new = dev_ca(tmp_path / "new", SERVERS)
    old = tmp_path / "old"
    shutil.copytree(live, old)
    both = (live / "ca.pem").read_text() + (new / "ca.pem").read_text()
    # Each step is followed by a kill of a server: all connections to it are opened again.
    change(cluster, lambda: replace(live / "ca.pem", both))
    cluster.strike(1)
    run.step(40)

    def switch() -> None:
        for server in range(SERVERS):
            copy_pair(f"server-{server}", new, live)

    change(cluster, switch)
    copy_pair("trainer-default", new, live)
    cluster.strike(0)
    cluster.wait_until_serving()
    run.step(40)
    change(cluster, lambda: replace(live / "ca.pem", (new / "ca.pem").read_text()))
    cluster.strike(1)
    cluster.wait_until_serving()
    run.step(ROUNDS - run.round)
    assert run.round == ROUNDS
    assert bits(run.state()) == plaintext
    run.close()
    control = Control(cluster.endpoints, 0.0, security=Security(**trainer_files(old)))
    with pytest.raises(ballast.Unreachable, match="is not of an authority in"):
        control.jobs()


def test_a_connection_without_tls_is_told_what_is_missing(cluster):
    with pytest.raises(ballast.Unreachable, match="the port speaks TLS; set BALLAST_TLS_CA"):
        Control(cluster.endpoints, 0.0).jobs()


def test_a_trainer_that_cannot_come_back_says_what_the_handshake_says(
    cluster, live, tmp_path, capfd
):
    own = tmp_path / "own"
    shutil.copytree(live, own)
    other = dev_ca(tmp_path / "other", SERVERS)
    run = Run(cluster, fresh_job(), 1, **trainer_files(own))
    run.step(1)
    said = []

    def use(source: Path) -> None:
        copy_pair("trainer-default", source, own)
        replace(own / "ca.pem", (source / "ca.pem").read_text())

    def says(words: str) -> bool:
        said.append(capfd.readouterr().err)
        return words in "".join(said)

    use(other)
    cluster.strike(1)
    for replica in run.replicas:
        for parameter in replica:
            parameter.grad = torch.ones_like(parameter)
    (step,) = run.trainers.start(lambda opt: opt.step())
    cause = f"the server's certificate is not of an authority in {own}/ca.pem"
    wait_for(lambda: says(cause), "the cause")
    use(live)
    step.result(60)
    assert run.round == 2
    run.close()


def test_files_that_cannot_be_used_are_named_at_once(cluster, live):
    good = trainer_files(live)
    with pytest.raises(ballast.BadArgument, match="tls_key"):
        Run(cluster, fresh_job(), 1, tls_ca=good["tls_ca"], tls_cert=good["tls_cert"])
    (live / "trainer-default.key").chmod(0o644)
    run = Run(cluster, fresh_job(), 1, **good)
    with pytest.raises(ballast.BadArgument, match=r"trainer-default.key: has mode 0644"):
        run.step(1)


def test_servers_refuse_to_start_with_the_place_of_the_bad_file(ballastd, live, tmp_path):
    (live / "server-0.key").chmod(0o640 if os.getuid() else 0o644)
    config = tmp_path / "server.yaml"
    config.write_text(
        f"security:\n  mode: tls\n  ca: {live}/ca.pem\n  certificate: {live}/server-0.pem\n"
        f"  key: {live}/server-0.key\n"
    )
    def start(*more: str) -> str:
        ended = subprocess.run([ballastd, "--config", config, *more], capture_output=True,
                               text=True, timeout=60, check=False)
        assert ended.returncode == 1
        return ended.stderr
    assert re.search(r"server.yaml:5:8: security.key: .*server-0.key: has mode 0\d+", start())
    (live / "server-0.key").chmod(SECRET)
    assert "must have exactly one, \"spiffe://ballast/server/1\"" in start("--id=1")
    (live / "ca.pem").unlink()
    assert re.search(r"server.yaml:3:7: security.ca: .*ca.pem: cannot be read", start())


def test_ballast_run_makes_its_own_certificates(ballastd, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, ballast.torch as bt\n"
        "w = torch.nn.Parameter(torch.ones(8))\n"
        "opt = bt.AdamW([('w', w)], lr=0.1)\n"
        "w.grad = torch.ones(8)\nopt.step()\nopt.close()\n"
        "print('stepped with', os.path.basename(os.environ['BALLAST_TLS_CERT']))\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "BALLAST_ENDPOINTS"}
    ended = subprocess.run(
        [sys.executable, "-m", "ballast.run", "--tls", "--servers=2", f"--server-binary={ballastd}",
         script],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "stepped with trainer-default.pem" in ended.stdout
