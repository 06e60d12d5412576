"""Rules between the parts of the Kubernetes manifests, beyond a schema's knowledge.

Comes from: manifests.py. Goes to: test_kubernetes.py, which also breaks each of them once.
Each check returns the faults, in words; [] is right.
"""

from __future__ import annotations

import re

from deploy.manifests import POD_INDEX, Document, Manifests

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "Ki": 1 << 10, "Mi": 1 << 20,
          "Gi": 1 << 30}
# Of the container's memory; the rest is for gRPC, RocksDB and the page cache.
_BUDGET_SHARE_MAX = 0.8
# A server's time limit for its end: 3 s for its streams, and as much as a slow disk needs.
STOP_S = 30


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", text).groups()
    return int(number) * _UNITS[unit]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def selectors(m: Manifests) -> list[str]:
    """Everything that selects pods selects the servers."""
    found = {"StatefulSet": m.servers["selector"]["matchLabels"],
             "PodDisruptionBudget": m.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
             "NetworkPolicy": m.one("NetworkPolicy", "ballast")["spec"]["podSelector"][
                 "matchLabels"]}
    for service in m.all("Service"):
        found[f"Service {service['metadata']['name']}"] = service["spec"]["selector"]
    for spread in m.pod["topologySpreadConstraints"]:
        found["spread"] = spread["labelSelector"]["matchLabels"]
    for rules in m.pod["affinity"]["podAntiAffinity"].values():
        for rule in rules:
            term = rule.get("podAffinityTerm", rule)
            found["podAntiAffinity"] = term["labelSelector"]["matchLabels"]
    return [f"{name} does not select the servers: {selector}" for name, selector in found.items()
            if not _matches(selector, m.labels)]


def ports(m: Manifests) -> list[str]:
    """The ports of pods, services, probes and addresses are those of the configuration."""
    own = {"grpc": _port(m.config["listen"]["address"]),
           "metrics": _port(m.config["admin"]["address"])}
    found = {f"containerPort {p['name']}": (p["containerPort"], own.get(p["name"]))
             for p in m.container["ports"]}
    for service in m.all("Service"):
        for port in service["spec"]["ports"]:
            name = f"port {port['name']} of Service {service['metadata']['name']}"
            found[name] = (port["port"], own.get(port["targetPort"]))
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        port = m.container[probe]["httpGet"]["port"]
        found[probe] = (own.get(port), own["metrics"])
    addresses = [peer["address"] for peer in m.config.get("cluster", {}).get("peers", [])]
    addresses.append(m.variables(0)["BALLAST_LISTEN_ADVERTISE_ADDRESS"])
    found |= {address: (_port(address), own["grpc"]) for address in addresses}
    return [f"{name}: {port} instead of {want}" for name, (port, want) in found.items()
            if port != want]


def peers(m: Manifests) -> list[str]:
    """Each replica is a peer, under the name that the headless service gives its pod."""
    replicas = m.servers["replicas"]
    listed = {p["id"]: p["address"] for p in m.config.get("cluster", {}).get("peers", [])}
    wrong = []
    if replicas > 1 and set(listed) != set(range(replicas)):
        wrong.append(f"{replicas} replicas, but the peers are {sorted(listed)}")
    namespace = m.one("StatefulSet")["metadata"]["namespace"]
    service = m.one("Service", m.servers["serviceName"])
    if service["spec"].get("clusterIP") != "None":
        wrong.append(f"{m.servers['serviceName']} is not headless")
    if not service["spec"].get("publishNotReadyAddresses"):
        wrong.append("a server without its peers is not ready, and its peers cannot find it")
    if m.servers["podManagementPolicy"] != "Parallel":
        wrong.append("the second server waits for the first one, and the first for the second")
    for ordinal in range(replicas):
        host = f"{m.pod_name(ordinal)}.{m.servers['serviceName']}.{namespace}.svc"
        address = f"{host}:{_port(m.config['listen']['address'])}"
        told = m.variables(ordinal)["BALLAST_LISTEN_ADVERTISE_ADDRESS"]
        wrong += [f"server {ordinal} is {text}, not {address}"
                  for text in {listed.get(ordinal, told), told} if text != address]
    return wrong


def identity(m: Manifests) -> list[str]:
    """cluster.id is the pod's ordinal."""
    sources = {e["name"]: e.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
               for e in m.container["env"]}
    path = sources.get("BALLAST_CLUSTER_ID")
    return [] if path == POD_INDEX else [f"cluster.id comes from {path}"]


def volumes(m: Manifests) -> list[str]:
    """Each directory of the configuration is a volume that fits its purpose, and outlives pods."""
    claims = {c["metadata"]["name"]: c["spec"] for c in m.servers["volumeClaimTemplates"]}
    shared = {v["name"]: v["persistentVolumeClaim"]["claimName"]
              for v in m.pod["volumes"] if "persistentVolumeClaim" in v}
    mounts = {mount["mountPath"]: mount["name"] for mount in m.container["volumeMounts"]}
    storage = m.config["storage"]
    wrong = []
    if mounts.get(storage.get("data_dir")) not in claims:
        wrong.append("storage.data_dir is not on a volume of the pod's own")
    claim = shared.get(mounts.get(storage.get("snapshot_dir")))
    if "snapshot_dir" not in storage:
        wrong += [f"{shared} are claimed for nothing"] if shared else []
    elif claim is None:
        wrong.append("storage.snapshot_dir is not on a shared volume")
    elif m.servers["replicas"] > 1:
        modes = m.one("PersistentVolumeClaim", claim)["spec"]["accessModes"]
        wrong += [] if modes == ["ReadWriteMany"] else [f"{modes} for snapshots of several servers"]
    if set(m.servers["persistentVolumeClaimRetentionPolicy"].values()) != {"Retain"}:
        wrong.append("the state goes with the StatefulSet")
    return wrong


def resources(m: Manifests) -> list[str]:
    """Requests equal limits, and the configuration stays inside them."""
    given = m.container["resources"]
    wrong = [] if given["requests"] == given["limits"] else ["requests are not the limits"]
    memory = _bytes(given["limits"]["memory"])
    budget = _bytes(m.config["storage"]["memory_budget"])
    if budget > memory * _BUDGET_SHARE_MAX:
        wrong.append(f"memory_budget {budget} leaves too little of {memory}")
    if _bytes(m.config["storage"].get("dram_budget", "0KiB")) > budget:
        wrong.append("dram_budget is above memory_budget")
    if str(m.config["rounds"]["worker_threads"]) != given["limits"]["cpu"]:
        wrong.append("worker_threads is not the CPU limit")
    return wrong


def restricted(m: Manifests) -> list[str]:
    """The restricted Pod Security Standard, and no way to the API server."""
    facts = {
        "token": m.one("ServiceAccount").get("automountServiceAccountToken") is False
        and m.pod["serviceAccountName"] == m.one("ServiceAccount")["metadata"]["name"],
        "namespace": "restricted" in m.one("Namespace")["metadata"]["labels"].values(),
    }
    wrong = [name for name, right in facts.items() if not right]
    for workload in m.all("StatefulSet") + m.all("Deployment"):
        pod = workload["spec"]["template"]["spec"]
        wrong += [name for container in pod["containers"]
                  for name, right in _limits_of(pod, container).items() if not right]
    return wrong


def _limits_of(whole: Document, container: Document) -> dict[str, bool]:
    pod, own = whole["securityContext"], container["securityContext"]
    return {
        "runAsNonRoot": pod.get("runAsNonRoot") is True,
        "runAsUser": pod.get("runAsUser", 0) > 0 and "runAsUser" not in own,
        "fsGroup": pod.get("fsGroup") == pod.get("runAsGroup"),
        "seccompProfile": pod.get("seccompProfile") == {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
        "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
        "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        "host": not any(key.startswith("host") for key in whole),
        "token": whole.get("automountServiceAccountToken") is False,
        "enableServiceLinks": whole.get("enableServiceLinks") is False,
    }


def network(m: Manifests) -> list[str]:
    """Servers and trainers reach the port of rounds, and nothing else reaches anything."""
    spec = m.one("NetworkPolicy", "ballast")["spec"]
    wrong = [] if set(spec["policyTypes"]) == {"Ingress", "Egress"} else ["one way is open"]
    port = [{"protocol": "TCP", "port": _port(m.config["listen"]["address"])}]
    pods = [{"podSelector": {"matchLabels": labels}}
            for labels in (m.labels, {"ballast-access": "trainer"})]
    if spec["ingress"] != [{"from": pods, "ports": port}]:
        wrong.append(f"ingress is {spec['ingress']}")
    to_peers, to_names = {"to": pods[:1], "ports": port}, spec["egress"][-1]
    if spec["egress"] != [to_peers, to_names] or {p["port"] for p in to_names["ports"]} != {53}:
        wrong.append(f"egress is {spec['egress']}")
    return wrong


def probes(m: Manifests) -> list[str]:
    """A restart needs a process that does not work; readiness asks more."""
    paths = {name: m.container[name]["httpGet"]["path"]
             for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    want = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    return [f"{name} asks {path}" for name, path in paths.items() if path != want[name]]


def ending(m: Manifests) -> list[str]:
    """A pod that ends is out of its Services before its server stops, and is not killed then."""
    hook = m.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    pause = re.fullmatch(r"--pause=(\d+)s", hook[-1] if hook else "")
    if pause is None or hook[:-1] != ["/usr/bin/ballastd"]:
        return [f"the preStop hook is {hook}"]
    grace = m.pod.get("terminationGracePeriodSeconds", 30)
    if grace < int(pause[1]) + STOP_S:
        return [f"{grace} s of grace for {pause[1]} s of the hook and {STOP_S} s of the stop"]
    return []


def disruption(m: Manifests) -> list[str]:
    """A drain takes one server at a time."""
    spec = m.one("PodDisruptionBudget")["spec"]
    return [] if spec.get("maxUnavailable") == 1 else [f"the budget is {spec}"]


def files(m: Manifests) -> list[str]:
    """The file that --config names is a key of the ConfigMap mounted there."""
    named = m.container["args"][m.container["args"].index("--config") + 1]
    folder, _, key = named.rpartition("/")
    mounted = {mount["mountPath"]: mount["name"] for mount in m.container["volumeMounts"]}
    maps = {v["name"]: v["configMap"]["name"] for v in m.pod["volumes"] if "configMap" in v}
    name = maps.get(mounted.get(folder))
    if name is None:
        return [f"--config names {named}, and no ConfigMap is mounted at {folder}"]
    keys = sorted(m.one("ConfigMap", name)["data"])
    return [] if key in keys else [f"--config names {key}, but {name} has {', '.join(keys)}"]


def access(m: Manifests) -> list[str]:
    """Each file that the security settings name is mounted, and only a pod of operators has the key
    of one; who scrapes shows the token that the servers want."""
    mounts = {mount["mountPath"] for mount in m.container["volumeMounts"]}
    security = m.config.get("security", {})
    token = m.config["admin"].get("token_file")
    named = [security.get(key) for key in ("ca", "certificate", "key", "tokens_file",
                                           "denied_file", "quotas_file")] + [token]
    wrong = [f"{path} is on no volume" for path in named
             if path and path.rpartition("/")[0] not in mounts]
    secrets = {v["name"]: v["secret"]["secretName"] for v in m.pod["volumes"] if "secret" in v}
    if "ballast-operator" in secrets.values():
        wrong.append("a server has the key of an operator")
    if (security.get("mode") == "tls") == bool(m.config["listen"].get("insecure_network")):
        wrong.append("either TLS or listen.insecure_network")
    for monitor in m.all("ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            shown = endpoint.get("authorization", {}).get("credentials")
            wanted = {"name": secrets.get("admin"), "key": token and token.rpartition("/")[2]}
            wrong += [] if shown == wanted else [f"a scrape shows {shown}, not {wanted}"]
    return wrong


CHECKS = (selectors, ports, peers, identity, volumes, resources, restricted, network, probes,
          ending, disruption, files, access)
