"""What kustomize makes of a folder of deploy/kubernetes, by kind and name.

Comes from: kubectl kustomize. Goes to: kubernetes_checks.py and the tests.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import yaml

from deploy.tools import DEPLOY, run

KUBERNETES = DEPLOY / "kubernetes"
# Each combines with the others, in any order; tokens wants tls.
COMPONENTS = ("nvme", "tls", "monitoring", "snapshots")
ALL = "base+" + "+".join((*COMPONENTS, "tokens"))
# A folder, and components on top of it. kubectl 1.20 reads the first two.
SERVERS = ("base", "overlays/dev", "base+snapshots", "base+nvme", "base+tls", ALL)
# Label of a StatefulSet's pod -> its ordinal.
POD_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"

Document = dict[str, Any]


@functools.cache
def rendered(kubectl: Path, folder: str) -> str:
    """Of a folder, or of one with components: "base+tls+nvme", in this order."""
    base, *components = folder.split("+")
    if not components:
        return _kustomize(kubectl, KUBERNETES / base)
    with tempfile.TemporaryDirectory() as own:
        above = os.path.relpath(KUBERNETES, os.path.realpath(own))
        (Path(own) / "kustomization.yaml").write_text(yaml.dump({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [f"{above}/{base}"],
            "components": [f"{above}/components/{name}" for name in components]}))
        return _kustomize(kubectl, Path(own))


def _kustomize(kubectl: Path, folder: Path) -> str:
    done = run(kubectl, "kustomize", folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(kubectl: Path, folder: str) -> list[Document]:
    """The documents of a folder; a fresh copy, which a test may change."""
    return list(yaml.load_all(rendered(kubectl, folder), Loader=yaml.CSafeLoader))


def without_hashes(found: list[Document]) -> dict[tuple[str, str], str]:
    """Kind and name -> text of each document, without the hash that each kustomize forms its own
    way, and without the empty fields that the old one writes."""
    by_name = {}
    for document in found:
        metadata = document["metadata"]
        for field in ("annotations", "labels"):
            if not metadata.get(field, True):
                del metadata[field]
        text = yaml.dump(document, Dumper=yaml.CSafeDumper)
        text = re.sub(r"(ballast-[a-z]+)-[0-9a-z]{10}\b", r"\1", text)
        name = re.sub(r"-[0-9a-z]{10}$", "", metadata["name"])
        by_name[document["kind"], name] = text
    return by_name


class Manifests:
    """The documents of one folder, with short ways to the subjects of the checks."""

    def __init__(self, found: list[Document]):
        self.documents = found

    def all(self, kind: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Document:
        named = [d for d in self.all(kind) if name in (None, d["metadata"]["name"])]
        assert len(named) == 1, f"{len(named)} documents are {kind} {name}"
        return named[0]

    @property
    def servers(self) -> Document:
        """The spec of the StatefulSet."""
        return self.one("StatefulSet")["spec"]

    @property
    def pod(self) -> Document:
        return self.servers["template"]["spec"]

    @property
    def container(self) -> Document:
        assert len(self.pod["containers"]) == 1
        return self.pod["containers"][0]

    @property
    def labels(self) -> dict[str, str]:
        """Those of a server's pod."""
        return self.servers["template"]["metadata"]["labels"]

    @property
    def config_text(self) -> str:
        """The file that --config names: a key of the ConfigMap mounted there."""
        path = Path(self.container["args"][self.container["args"].index("--config") + 1])
        mount = next(m for m in self.container["volumeMounts"]
                     if m["mountPath"] == str(path.parent))
        volume = next(v for v in self.pod["volumes"] if v["name"] == mount["name"])
        return self.one("ConfigMap", volume["configMap"]["name"])["data"][path.name]

    @property
    def config(self) -> Document:
        """The servers' configuration: the file, and the variables of the pod, which win over it."""
        config = yaml.safe_load(self.config_text)
        for name, value in self.variables(0).items():
            if name.startswith("BALLAST_"):
                section, _, field = name.removeprefix("BALLAST_").lower().partition("_")
                config.setdefault(section, {})[field] = yaml.safe_load(value)
        return config

    def pod_name(self, ordinal: int) -> str:
        return f"{self.one('StatefulSet')['metadata']['name']}-{ordinal}"

    def variables(self, ordinal: int) -> dict[str, str]:
        """The environment of a pod as the kubelet makes it: fields of the pod, then $(NAME)."""
        fields = {
            "metadata.name": self.pod_name(ordinal),
            "metadata.namespace": self.one("StatefulSet")["metadata"]["namespace"],
            POD_INDEX: str(ordinal),
        }
        values: dict[str, str] = {}
        for entry in self.container["env"]:
            if "valueFrom" in entry:
                values[entry["name"]] = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                values[entry["name"]] = re.sub(
                    r"\$\((\w+)\)", lambda found: values[found[1]], entry["value"])
        return values
