"""deploy/helm: the chart is the generator's present output, Helm finds no fault in it, and it
installs the objects that kustomize makes of the same choice.
"""

from __future__ import annotations

import sys

import helm_python
import kubernetes_validate
import pytest

from deploy import kubernetes_checks as checks
from deploy.helm_chart import CHART, choices, comparable, documents, installed
from deploy.manifests import ALL, SERVERS
from deploy.manifests import documents as kustomized
from deploy.tools import DEPLOY, kubectls, run

FOLDERS = [folder for folder in SERVERS if folder.startswith("base")] + [
    "base+tls+tokens", "base+monitoring", "base+nvme+monitoring"]
# Each value is another than its default; names of digits must stay texts.
OWN = {
    "image": "registry.example.org/ballast:1", "imagePullSecrets": [{"name": "registry"}],
    "replicas": 3, "cpus": 6, "memoryGiB": 18, "data": {"storageClass": "7", "size": "90Gi"},
    "adminSecret": "12",
    "tls": {"enabled": True, "secret": "123", "operatorSecret": "1e3",
            "denied": ["spiffe://ballast/a", "spiffe://ballast/b"],
            "quotas": {"tenants": {"acme": {"jobs": 4}}}},
    "tokens": {"enabled": True, "secret": "0123"},
    "snapshots": {"enabled": True, "storageClass": "8", "size": "80Gi"},
    "nvme": {"enabled": True},
    "monitoring": {"enabled": True, "namespace": "watch", "labels": {"release": "prom"},
                   "runbooks": "https://wiki.example.org/operations.md"},
    "env": [{"name": "BALLAST_LOG_LEVEL", "value": "warn"}],
    "pod": {"priorityClassName": "stateful"},
}


def test_the_chart_is_what_the_generator_makes_today():
    done = run(sys.executable, DEPLOY / "helm" / "generate.py", "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("values", [{}, choices(ALL), OWN], ids=["default", "all", "own"])
def test_helm_lint_finds_nothing(values):
    found = helm_python.lint(CHART, values, strict=True, namespace="ballast", kube_version="1.28.0")
    assert found["errors"] == []
    assert [m["error"] for m in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_helm_and_kustomize_make_the_same(folder):
    ours = comparable(documents(choices(folder)))
    theirs = comparable(kustomized(kubectls()["new"], folder))
    assert ours.keys() == theirs.keys()
    for key, found in ours.items():
        assert found == theirs[key], key
    for check in checks.CHECKS:
        assert check(installed(choices(folder))) == [], check.__name__


def test_a_choice_makes_a_difference_that_the_comparison_sees():
    base, *others = (comparable(documents(choices(f"base{more}")))
                     for more in ("", "+nvme", "+tls", "+tls+tokens", "+snapshots", "+monitoring"))
    assert all(base != other for other in others)


def test_every_value_reaches_the_objects(ballastd, tmp_path):
    """Of another namespace. The parts still fit each other, the schema, and the server."""
    found = installed(OWN, namespace="train")
    for each in found.documents:
        assert each["metadata"].get("namespace", "train") == "train"
        if not each["apiVersion"].startswith("monitoring"):
            kubernetes_validate.validate(each, "1.28", strict=True)
    for check in checks.CHECKS:
        if check is not checks.access:  # which knows the Secrets by their own names
            assert check(found) == [], check.__name__
    text = str(found.documents)
    for own in ("'imagePullSecrets': [{'name': 'registry'}]",
                "'storageClassName': '7'", "'90Gi'", "'secretName': '12'",
                "{'key': 'token', 'name': '12'}", "'secretName': '123'", "'secretName': '1e3'",
                "'secretName': '0123'", "'storageClassName': '8'", "'80Gi'",
                "{'kubernetes.io/metadata.name': 'watch'}", "'priorityClassName': 'stateful'",
                "https://wiki.example.org/operations.md#serverdown"):
        assert own in text, own
    assert found.one("ServiceMonitor")["metadata"]["labels"]["release"] == "prom"
    assert found.one("PrometheusRule")["metadata"]["labels"]["release"] == "prom"
    assert found.config["storage"]["memory_budget"] == "13824MiB"
    assert found.config["storage"]["dram_budget"] == "6912MiB"
    assert found.config["log"]["level"] == "warn"
    assert found.config["rounds"]["worker_threads"] == 6
    assert found.servers["replicas"] == 3
    given = {"cpu": "6", "memory": "18Gi"}
    assert found.container["resources"] == {"limits": given, "requests": given}
    operator, = found.one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert found.container["image"] == operator["image"] == OWN["image"]
    lists = found.one("ConfigMap", "ballast-access")["data"]
    assert lists["denied"].splitlines()[1:] == OWN["tls"]["denied"]
    config = tmp_path / "ballastd.yaml"
    config.write_text(found.config_text)
    for ordinal in range(3):
        done = run(ballastd, "--config", config, "--print-config", env=found.variables(ordinal))
        assert (done.returncode, done.stderr) == (0, "")


def test_one_server_without_tls_is_a_cluster(ballastd, tmp_path):
    found = installed({"replicas": 1, "cpus": 1, "memoryGiB": 2})
    assert checks.peers(found) == [] and checks.resources(found) == []
    given = {"cpu": "1", "memory": "2Gi"}
    assert found.container["resources"] == {"limits": given, "requests": given}
    assert found.config["storage"]["memory_budget"] == "1536MiB"
    assert found.config["rounds"]["worker_threads"] == 1
    config = tmp_path / "ballastd.yaml"
    config.write_text(found.config_text)
    done = run(ballastd, "--config", config, "--print-config", env=found.variables(0))
    assert (done.returncode, done.stderr) == (0, "")


def test_another_configuration_restarts_the_servers_and_snapshots_outlive_the_release():
    def mark(values: dict) -> str:
        servers = installed(values).servers
        return servers["template"]["metadata"]["annotations"]["checksum/config"]

    usual = mark({})
    assert usual == mark({"data": {"size": "1Gi"}}) != mark({"replicas": 3})
    claim = installed(choices("base+snapshots")).one("PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("values, said", [
    ({"tokens": {"enabled": True}}, "set tls.enabled too"),
    ({"tls": {"enable": True}}, "enable"),
    ({"replicas": "3"}, "replicas"),
    ({"replicas": 0}, "replicas"),
    *(({"pod": {key: None}}, f"/pod/{key}") for key in (
        "affinity", "containers", "imagePullSecrets", "securityContext", "volumes")),
    *(({"env": [{"name": name, "value": "1"}]}, "/env/0/name") for name in (
        "BALLAST_SECURITY_MODE", "BALLAST_STORAGE_MEMORY_BUDGET", "POD_NAME")),
    ({"tls": {"secret": ""}}, "/tls/secret"),
    ({"tls": {"operatorSecret": ""}}, "/tls/operatorSecret"),
    ({"tokens": {"secret": ""}}, "/tokens/secret"),
    ({"adminSecret": ""}, "/adminSecret"),
])
def test_values_that_cannot_be_are_refused_by_name(values, said):
    with pytest.raises(helm_python.HelmError, match=said):
        documents(values)
