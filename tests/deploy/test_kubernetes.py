"""deploy/kubernetes: two kustomizes make the same of it, the schema and our checks find no fault,
and the real server takes the manifests' settings.
"""

from __future__ import annotations

import itertools
import re

import kubernetes_validate
import pytest
import yaml

from deploy import kubernetes_checks as checks
from deploy.manifests import (
    ALL, COMPONENTS, SERVERS, Manifests, documents, rendered, without_hashes,
)
from deploy.tools import REPO, kubectls, run

# The oldest Kubernetes that knows the label of the ordinal, and a present one.
VERSIONS = ("1.28", "1.37")
# Objects of the Prometheus operator, whose schemas test_monitoring.py has.
OPERATORS = "monitoring.coreos.com/v1"


def manifests(folder: str) -> Manifests:
    return Manifests(documents(kubectls()["new"], folder))


@pytest.mark.parametrize("folder", [folder for folder in SERVERS if "+" not in folder])
def test_an_old_and_a_new_kubectl_make_the_same(folder):
    old, new = (without_hashes(documents(path, folder)) for path in kubectls().values())
    assert old == new


@pytest.mark.parametrize("folder", SERVERS)
def test_every_object_fits_its_schema(folder):
    for document in documents(kubectls()["new"], folder):
        for version in VERSIONS if document["apiVersion"] != OPERATORS else ():
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("change", [{"replicas": "2"}, {"replica": 2}])
def test_the_schema_finds_wrong_types_and_unknown_fields(change):
    found = manifests("base").one("StatefulSet")
    found["spec"] |= change
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found, VERSIONS[-1], strict=True)


def in_order(folder: str) -> list[str]:
    """The objects as texts; lists that components add to have no order of their own."""
    found = manifests(folder)
    for what in ("env", "volumeMounts"):
        found.container[what].sort(key=str)
    found.pod["volumes"].sort(key=str)
    return sorted(map(str, found.documents))


def test_components_combine_in_any_order():
    for count in range(2, len(COMPONENTS) + 1):
        for chosen in itertools.combinations(COMPONENTS, count):
            there, back = (f"base+{'+'.join(names)}" for names in (chosen, chosen[::-1]))
            assert in_order(there) == in_order(back), chosen
            for check in checks.CHECKS:
                assert check(manifests(back)) == [], (chosen, check.__name__)


@pytest.mark.parametrize("folder", SERVERS)
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_the_parts_fit_each_other(check, folder):
    assert check(manifests(folder)) == []


def _config(m: Manifests, old: str, new: str) -> None:
    data = next(c["data"] for c in m.all("ConfigMap") if "ballastd.yaml" in c["data"])
    assert data["ballastd.yaml"].count(old) >= 1
    data["ballastd.yaml"] = data["ballastd.yaml"].replace(old, new)


def _variable(m: Manifests, name: str) -> dict:
    return next(entry for entry in m.container["env"] if entry["name"] == name)


def _policy(m: Manifests) -> dict:
    return m.one("NetworkPolicy", "ballast")["spec"]


# One wrong thing each, for the check that must see it.
MUTANTS = {
    "a selector of other pods": (checks.selectors, lambda m: m.one("Service", "ballast")["spec"][
        "selector"].update({"app.kubernetes.io/component": "trainer"})),
    "an empty selector": (checks.selectors, lambda m: m.one("PodDisruptionBudget")["spec"][
        "selector"]["matchLabels"].clear()),
    "another port in the configuration": (
        checks.ports, lambda m: _config(m, "0.0.0.0:7000", "0.0.0.0:7001")),
    "another admin port": (checks.ports, lambda m: _config(m, ":9000", ":9001")),
    "a probe of the wrong port": (checks.ports, lambda m: m.container["livenessProbe"][
        "httpGet"].update(port="grpc")),
    "a replica without a peer": (checks.peers, lambda m: m.servers.update(replicas=3)),
    "a peer with another name": (checks.peers, lambda m: _config(m, "ballast-1.", "ballast1.")),
    "peers of another namespace": (checks.peers, lambda m: _config(m, ".ballast.svc", ".x.svc")),
    "a service that hides servers": (checks.peers, lambda m: m.one("Service", "ballast-peers")[
        "spec"].pop("publishNotReadyAddresses")),
    "servers in order": (checks.peers, lambda m: m.servers.update(podManagementPolicy="Ordered")),
    "one id for all": (checks.identity, lambda m: _variable(m, "BALLAST_CLUSTER_ID").update(
        {"value": "0", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})),
    "data in the container": (checks.volumes, lambda m: _config(m, "data_dir: /", "data_dir: /x/")),
    "snapshots in the container": (checks.volumes, lambda m: _variable(
        m, "BALLAST_STORAGE_SNAPSHOT_DIR").update(value="/y")),
    "a claim of one node for all": (checks.volumes, lambda m: m.one("PersistentVolumeClaim")[
        "spec"].update(accessModes=["ReadWriteOnce"])),
    "a budget above the limit": (checks.resources, lambda m: _variable(
        m, "BALLAST_STORAGE_DRAM_BUDGET").update(value="50GiB")),
    "more threads than cores": (checks.resources, lambda m: _variable(
        m, "BALLAST_ROUNDS_WORKER_THREADS").update(value="64")),
    "a budget of a variable above the limit": (checks.resources, lambda m: _variable(
        m, "BALLAST_STORAGE_MEMORY_BUDGET").update(value="60GiB")),
    "a burst of memory": (checks.resources, lambda m: m.container["resources"]["requests"].update(
        memory="1Gi")),
    "a privileged container": (checks.restricted, lambda m: m.container["securityContext"].update(
        allowPrivilegeEscalation=True)),
    "root": (checks.restricted, lambda m: m.container["securityContext"].update(runAsUser=0)),
    "the network of the node": (checks.restricted, lambda m: m.pod.update(hostNetwork=True)),
    "service links": (checks.restricted, lambda m: m.pod.pop("enableServiceLinks")),
    "an open port": (checks.network, lambda m: _policy(m)["ingress"][0].pop("from")),
    "another open port": (checks.network, lambda m: _policy(m)["ingress"][0]["ports"].append(
        {"protocol": "TCP", "port": 9000})),
    "an open way out": (checks.network, lambda m: _policy(m)["egress"].insert(0, {})),
    "a scrape without the token": (checks.access, lambda m: m.one("ServiceMonitor")["spec"][
        "endpoints"][0].pop("authorization")),
    "a list that is not mounted": (checks.access, lambda m: _variable(
        m, "BALLAST_SECURITY_DENIED_FILE").update(value="/nowhere/denied")),
    "an admin's key at a server": (checks.access, lambda m: next(
        v for v in m.pod["volumes"] if v["name"] == "tokens")["secret"].update(
            secretName="ballast-operator")),
    "plaintext next to TLS": (checks.access, lambda m: _variable(
        m, "BALLAST_LISTEN_INSECURE_NETWORK").update(value="true")),
    "an operator's pod that is root": (checks.restricted, lambda m: m.one("Deployment")["spec"][
        "template"]["spec"]["securityContext"].update(runAsUser=0)),
    "a zone for others": (checks.selectors, lambda m: m.pod["topologySpreadConstraints"][0][
        "labelSelector"]["matchLabels"].clear()),
    "liveness that asks the disk": (checks.probes, lambda m: m.container["livenessProbe"][
        "httpGet"].update(path="/readyz")),
    "a key that the ConfigMap has not": (checks.files, lambda m: m.container["args"].__setitem__(
        1, "/etc/ballast/server.yaml")),
    "a file where no ConfigMap is": (checks.files, lambda m: m.container["args"].__setitem__(
        1, "/etc/ballastd.yaml")),
    "an end without a pause": (checks.ending, lambda m: m.container.pop("lifecycle")),
    "a pause as long as the grace": (checks.ending, lambda m: m.container["lifecycle"]["preStop"][
        "exec"]["command"].__setitem__(1, "--pause=40s")),
    "all servers at once": (checks.disruption, lambda m: m.one("PodDisruptionBudget")[
        "spec"].update(maxUnavailable=2)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_check_sees_what_is_wrong(name):
    check, spoil = MUTANTS[name]
    spoiled = manifests(ALL)
    spoil(spoiled)
    assert check(spoiled) != []


def test_each_check_has_a_mutant():
    assert {check for check, _ in MUTANTS.values()} == set(checks.CHECKS)


@pytest.fixture
def config_file(tmp_path):
    """config_file(manifests) -> the path of the file that the pod finds."""
    def write(found: Manifests):
        path = tmp_path / "ballastd.yaml"
        path.write_text(found.config_text)
        return path

    return write


@pytest.mark.parametrize("folder", SERVERS)
def test_the_server_accepts_the_configuration_of_every_pod(folder, ballastd, config_file):
    found = manifests(folder)
    for ordinal in range(found.servers["replicas"]):
        done = run(ballastd, "--config", config_file(found), "--print-config",
                   env=found.variables(ordinal))
        assert (done.returncode, done.stderr) == (0, "")
        assert re.search(rf"^ +id: {ordinal} ", done.stdout, re.M), done.stdout


def test_the_server_takes_the_hook_of_its_pod(ballastd):
    hook = manifests("base").container["lifecycle"]["preStop"]["exec"]["command"]
    done = run(ballastd, *(word.replace("=5s", "=1ms") for word in hook[1:]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    refused = run(ballastd, "--pause=5")
    assert refused.returncode == 2 and "--pause takes 1ms to 5m" in refused.stderr


def test_the_server_refuses_a_key_that_does_not_exist(ballastd, config_file):
    found = manifests("base")
    _config(found, "memory_budget", "memory_bugdet")
    done = run(ballastd, "--config", config_file(found), "--check-config", env=found.variables(0))
    assert done.returncode == 2
    assert 'did you mean "memory_budget"' in done.stderr


def test_the_image_has_the_version_of_the_server(ballastd):
    version = run(ballastd, "--version").stdout.split()[1]
    for folder in SERVERS:
        found = manifests(folder)
        assert found.container["image"] == f"ballast:{version}"
        for other in found.all("Deployment"):
            container = other["spec"]["template"]["spec"]["containers"][0]
            assert container["image"] == f"ballast:{version}"


def test_the_volume_in_the_readme_fits_the_overlay():
    """A claim of the overlay can be bound to it."""
    text = (REPO / "deploy/README.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    volume = next(block for block in map(yaml.safe_load, blocks)
                  if block.get("kind") == "PersistentVolume")
    kubernetes_validate.validate(volume, VERSIONS[-1], strict=True)
    found = manifests("base+nvme")
    claim = found.servers["volumeClaimTemplates"][0]["spec"]
    assert volume["spec"]["storageClassName"] == claim["storageClassName"]
    assert claim["storageClassName"] == found.one("StorageClass")["metadata"]["name"]
    assert volume["spec"]["accessModes"] == claim["accessModes"]
    assert volume["spec"]["capacity"] == claim["resources"]["requests"]


def test_no_label_or_patch_that_an_old_kubectl_lacks():
    """The fields that the old one refuses, by name, so that the reason is in the message."""
    for name in ("base", "overlays/dev"):
        path = REPO / "deploy" / "kubernetes" / name / "kustomization.yaml"
        keys = set(re.findall(r"^(\w+):", path.read_text(), re.M))
        assert not keys & {"labels", "patches", "components", "replicas", "replacements"}, path


def test_the_hash_of_the_configuration_reaches_the_pods():
    """A change of ballastd.yaml restarts the servers."""
    name = manifests("base").one("ConfigMap")["metadata"]["name"]
    assert rendered(kubectls()["new"], "base").count(f"name: {name}\n") == 2
