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
# Each value is another than its default.
OWN = {
    "image": "registry.example.org/ballast:1", "imagePullSecrets": [{"name": "registry"}],
    "replicas": 3, "cpus": 6, "memoryGiB": 18, "data": {"storageClass": "fast", "size": "90Gi"},
    "adminSecret": "own-admin",
    "tls": {"enabled": True, "secret": "own-tls", "operatorSecret": "own-operator",
            "denied": ["spiffe://ballast/a", "spiffe://ballast/b"],
            "quotas": {"tenants": {"acme": {"jobs": 4}}}},
    "tokens": {"enabled": True, "secret": "own-tokens"},
    "snapshots": {"enabled": True, "storageClass": "shared", "size": "80Gi"},
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
    for own in ("registry.example.org/ballast:1", "'imagePullSecrets': [{'name': 'registry'}]",
                "'storageClassName': 'fast'", "'90Gi'", "'secretName': 'own-admin'",
                "{'key': 'token', 'name': 'own-admin'}", "own-tls", "own-operator", "own-tokens",
                "'storageClassName': 'shared'", "'80Gi'",
                "{'kubernetes.io/metadata.name': 'watch'}", "'priorityClassName': 'stateful'",
                "https://wiki.example.org/operations.md#serverdown"):
        assert own in text, own
    assert found.one("ServiceMonitor")["metadata"]["labels"]["release"] == "prom"
    assert found.one("PrometheusRule")["metadata"]["labels"]["release"] == "prom"
    assert found.config["storage"]["memory_budget"] == "13824MiB"
    assert found.config["storage"]["dram_budget"] == "6912MiB"
    assert found.config["log"]["level"] == "warn"
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
])
def test_values_that_cannot_be_are_refused_by_name(values, said):
    with pytest.raises(helm_python.HelmError, match=said):
        documents(values)
