"""Real servers with the arguments, variables and configuration of the pods, on loopback.

The walk for a lost node is that of deploy/README.md.
"""

from __future__ import annotations

import shutil
import time

import pytest

from deploy.manifests import SERVERS, Manifests, documents
from deploy.pods import Pods
from deploy.tools import kubectls, run
from deploy.training import train


@pytest.fixture
def run_pods(start_server, tmp_path):
    def start(folder: str) -> Pods:
        return Pods(Manifests(documents(kubectls()["new"], folder)), tmp_path, start_server)

    return start


@pytest.mark.parametrize("folder", SERVERS)
def test_probes_answer_and_sigterm_ends_in_time(folder, run_pods):
    """Before the servers know each other they are alive and not ready."""
    pods = run_pods(folder)
    container = pods.found.container
    ask = {name: container[f"{name}Probe"]["httpGet"]["path"]
           for name in ("startup", "liveness", "readiness")}
    if len(pods.servers) > 1:
        for server in pods.servers:
            assert [server.get(path)[0] for path in ask.values()] == [200, 200, 503]
    pods.introduce()
    for server in pods.servers:
        assert [server.get(path)[0] for path in ask.values()] == [200, 200, 200]
        assert server.get("/metrics", pods.token)[0] == 200
        assert not pods.token or server.get("/metrics")[0] == 401
        assert "BALLAST_" not in server.log()  # No variable that sets nothing.
    assert set(pods.stop()) == {0}


def test_the_operators_pod_operates_the_servers(run_pods, ballastd):
    """As `kubectl exec deploy/ballast-operator` does, with the variables of that pod."""
    pods = run_pods("base+tls")
    pods.introduce()
    container = pods.found.one("Deployment")["spec"]["template"]["spec"]["containers"][0]
    variables = {entry["name"]: entry["value"].replace("/operator/", f"{pods.tls}/")
                 for entry in container["env"]}
    variables["BALLAST_ENDPOINTS"] = pods.servers[0].address

    def ballastctl(*words: str) -> tuple[int, str]:
        done = run(ballastd.with_name("ballastctl"), *words, env=variables)
        return done.returncode, done.stdout + done.stderr

    assert ballastctl("health")[0] == 0
    code, said = ballastctl("reload")
    assert code == 0 and said.count("security.denied_file") == 2, said
    # Its own command runs on: only the terminal is missing here.
    code, said = ballastctl(*container["command"][1:])
    assert container["tty"] and code == 2 and "redraws a terminal" in said


def test_any_one_server_is_an_endpoint(run_pods):
    """As the client Service gives it. The second server is not the home."""
    pods = run_pods("base")
    pods.introduce()
    assert train(pods.servers[1].address, "gpt", rounds=1) == 1


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_node(lost, run_pods, ballastd):
    """An empty volume takes the place of a lost one, and the job continues from its snapshot."""
    def ballastctl(*words: str) -> tuple[int, str]:
        endpoint = pods.servers[1 - lost].address
        done = run(ballastd.with_name("ballastctl"), *words, "--endpoint", endpoint, env={})
        return done.returncode, done.stdout + done.stderr

    pods = run_pods("base+snapshots")
    pods.introduce()
    assert train(pods.servers[0].address, "gpt", rounds=2) == 2
    assert ballastctl("snapshot", "create", "gpt", "good")[0] == 0
    pods.stop()
    shutil.rmtree(pods.data(lost))
    pods.start_again()
    # A home without its old directory hears of the job from the other server, after its start.
    while "gpt" not in ballastctl("jobs", "list")[1]:
        time.sleep(0.1)
    assert ballastctl("jobs", "delete", "gpt") == (0, "deleted gpt\n")
    assert "good" in ballastctl("snapshot", "list", "gpt")[1]
    code, said = ballastctl("snapshot", "restore", "gpt", "good", "--as", "again")
    assert code == 0, said
    assert train(pods.servers[0].address, "again", rounds=1, resume="must") == 3
