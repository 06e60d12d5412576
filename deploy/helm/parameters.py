"""The places of values.yaml's values in the chart's templates. Goes to: generate.py.

A path is KIND/NAME of an object and the keys below it; an item of a list has its name as key.
"""

from __future__ import annotations

import re

_SERVERS = "StatefulSet/ballast"
_POD = f"{_SERVERS}/spec/template/spec"
_BALLASTD = f"{_POD}/containers/ballastd"
_OPERATOR = "Deployment/ballast-operator/spec/template/spec"
_DATA = f"{_SERVERS}/spec/volumeClaimTemplates/data/spec"
_CLAIM = "PersistentVolumeClaim/ballast-snapshots"

_CPUS = "{{ .Values.cpus | default (ternary 8 4 .Values.nvme.enabled) | toString | quote }}"
_MEMORY = "{{ .Values.memoryGiB | default (ternary 64 16 .Values.nvme.enabled) }}Gi"

# Path -> the template in place of the text there.
VALUES = {
    f"{_SERVERS}/spec/replicas": "{{ .Values.replicas }}",
    f"{_BALLASTD}/image": "{{ .Values.image | quote }}",
    f"{_OPERATOR}/containers/ballastctl/image": "{{ .Values.image | quote }}",
    f"{_BALLASTD}/resources/requests/cpu": _CPUS,
    f"{_BALLASTD}/resources/limits/cpu": _CPUS,
    f"{_BALLASTD}/resources/requests/memory": _MEMORY,
    f"{_BALLASTD}/resources/limits/memory": _MEMORY,
    f"{_BALLASTD}/env/BALLAST_ROUNDS_WORKER_THREADS/value": _CPUS,
    f"{_BALLASTD}/env/BALLAST_STORAGE_MEMORY_BUDGET/value":
        '{{ include "ballast.share" (list (.Values.memoryGiB | default 64) 3 4) }}',
    f"{_BALLASTD}/env/BALLAST_STORAGE_DRAM_BUDGET/value":
        '{{ include "ballast.share" (list (.Values.memoryGiB | default 64) 3 8) }}',
    f"{_DATA}/resources/requests/storage":
        '{{ .Values.data.size | default (ternary "1500Gi" "200Gi" .Values.nvme.enabled)'
        ' | quote }}',
    f"{_POD}/volumes/tls/secret/secretName": "{{ .Values.tls.secret | quote }}",
    f"{_POD}/volumes/admin/secret/secretName": "{{ .Values.adminSecret | quote }}",
    f"{_POD}/volumes/tokens/secret/secretName": "{{ .Values.tokens.secret | quote }}",
    f"{_OPERATOR}/volumes/operator/secret/secretName":
        "{{ .Values.tls.operatorSecret | quote }}",
    f"{_CLAIM}/spec/resources/requests/storage": "{{ .Values.snapshots.size | quote }}",
}

# Paths whose key is left out; ADDED brings it back under a condition of its own.
WITHOUT = {f"{_DATA}/storageClassName"}

_PULL_SECRETS = ["{{- with .Values.imagePullSecrets }}",
                 "imagePullSecrets: {{ toJson . }}",
                 "{{- end }}"]
# Path of a map or list -> lines after the present ones.
ADDED = {
    f"{_SERVERS}/spec/template/metadata": [
        "# Servers read the file at their start: a change restarts them, one after the other.",
        "annotations:",
        '  checksum/config: {{ include (print $.Template.BasePath "/configmap-ballast-config.yaml")'
        " . | sha256sum }}"],
    _POD: [*_PULL_SECRETS, "{{- with .Values.pod }}{{ toYaml . | nindent 6 }}{{ end }}"],
    _OPERATOR: _PULL_SECRETS,
    f"{_BALLASTD}/env": ["{{- with .Values.env }}{{ toYaml . | nindent 12 }}{{ end }}"],
    _DATA: [
        '{{- with .Values.data.storageClass | default (ternary "ballast-nvme" ""'
        " .Values.nvme.enabled) }}",
        "storageClassName: {{ . | quote }}",
        "{{- end }}"],
    f"{_CLAIM}/metadata": [
        "# Snapshots outlive the release.",
        "annotations:",
        "  helm.sh/resource-policy: keep"],
    f"{_CLAIM}/spec": [
        "{{- with .Values.snapshots.storageClass }}",
        "storageClassName: {{ . | quote }}",
        "{{- end }}"],
    "ServiceMonitor/ballast/metadata/labels": [
        "{{- with .Values.monitoring.labels }}{{ toYaml . | nindent 4 }}{{ end }}"],
}

# Objects with another condition than that of their component.
WHEN = {"StorageClass/ballast-nvme": "and .Values.nvme.enabled (not .Values.data.storageClass)"}

# Lines at the top of an object's template.
FIRST = {_SERVERS: [
    "{{- if and .Values.tokens.enabled (not .Values.tls.enabled) }}",
    '{{- fail "tokens.enabled without tls.enabled: servers take bearer tokens over TLS only; '
    'set tls.enabled too" }}',
    "{{- end }}"]}

# Objects that the chart leaves to a person, or has a template of its own for, which reads the file
# of deploy/monitoring.
BY_HAND = {"Namespace/ballast", "PrometheusRule/ballast", "ConfigMap/ballast-dashboard"}

_PEERS = re.compile(r"(    - \{id: \d+, address: \"ballast-\d+\.[^\n]*\n)+")
_EACH_PEER = """{{- range until (int .Values.replicas) }}
    - {id: {{ . }}, address: "ballast-{{ . }}.ballast-peers.{{ $.Release.Namespace }}.svc:7000"}
{{- end }}
"""
# End of a path -> what of its text becomes a template.
_TEXTS = {
    "/metadata/namespace": ((r"^ballast$", "{{ .Release.Namespace }}"),),
    "/namespaceSelector/matchLabels/kubernetes.io/metadata.name":
        ((r"^monitoring$", "{{ .Values.monitoring.namespace }}"),),
    "/authorization/credentials/name": ((r"^ballast-admin$", "{{ .Values.adminSecret }}"),),
    "/data/ballastd.yaml": (
        (_PEERS, _EACH_PEER),
        (r"(?<=memory_budget: )12GiB",
         '{{ include "ballast.share" (list (.Values.memoryGiB | default 16) 3 4) }}'),
        (r"(?<=worker_threads: )4", "{{ .Values.cpus | default 4 }}")),
    "/data/denied": ((r"\Z", "{{- range .Values.tls.denied }}\n{{ . }}\n{{- end }}\n"),),
    "/data/quotas.yaml":
        ((r"\Z", "{{- with .Values.tls.quotas }}{{ toYaml . | nindent 4 }}{{ end }}\n"),),
    "": ((r"\.ballast\.svc\b", ".{{ .Release.Namespace }}.svc"),),
}


def filled(value: object, path: str) -> object:
    """A text of kustomize with templates for the values that values.yaml decides."""
    if not isinstance(value, str):
        return value
    assert "{{" not in value, f"{path} has braces, which a template would read"
    for end, changes in _TEXTS.items():
        for pattern, template in changes if path.endswith(end) else ():
            value = re.sub(pattern, lambda _, t=template: t, value)
    return value


# Maps of values.yaml in which every name is allowed.
OPEN = {"/pod", "/tls/quotas", "/monitoring/labels"}

# More than the type of a value; limits() adds to them.
LIMITS = {
    "/replicas": {"minimum": 1},
    "/cpus": {"minimum": 0},
    "/memoryGiB": {"minimum": 0},
    "/image": {"minLength": 1},
    "/adminSecret": {"minLength": 1},
    "/tls/secret": {"minLength": 1},
    "/tls/operatorSecret": {"minLength": 1},
    "/tokens/secret": {"minLength": 1},
    "/snapshots/size": {"minLength": 1},
    "/tls/denied": {"items": {"type": "string"}},
    "/imagePullSecrets": {"items": {"type": "object", "required": ["name"]}},
}


def limits(servers: list[dict]) -> dict[str, dict]:
    """More than the type of a value. `servers`: the StatefulSet of each choice: `pod` and `env` may
    not set a key of these again, since of two equal keys the last would win."""
    pods = [each["spec"]["template"]["spec"] for each in servers]
    keys = {"imagePullSecrets", *(key for pod in pods for key in pod)}
    names = {entry["name"] for pod in pods for entry in pod["containers"][0]["env"]}
    return {**LIMITS,
            "/pod": {"properties": dict.fromkeys(sorted(keys), False)},
            "/env": {"items": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string", "not": {"enum": sorted(names)}}}}}}


CHART = """# Made by generate.py.
apiVersion: v2
name: ballast
description: State servers of Ballast, which keep the optimizer of a training run
type: application
version: VERSION
appVersion: VERSION
kubeVersion: ">=1.28.0-0"
"""
