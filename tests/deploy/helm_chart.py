"""What Helm makes of deploy/helm/ballast.

Comes from: the Helm library of .venv. Goes to: test_helm.py.
"""

from __future__ import annotations

import re
from typing import Any

import helm_python
import yaml

from deploy.manifests import Document, Manifests
from deploy.tools import DEPLOY

CHART = DEPLOY / "helm" / "ballast"


class _OnceLoader(yaml.CSafeLoader):
    """Refuses a map with two equal keys, of which others take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        assert not twice, f"{', '.join(twice)} twice in a map, {node.start_mark}"
        return super().construct_mapping(node, deep)


def choices(folder: str) -> dict[str, Any]:
    """The values for a choice such as "base+tls+nvme" of deploy/kubernetes."""
    return {name: {"enabled": True} for name in folder.split("+")[1:]}


def documents(values: dict[str, Any], namespace: str = "ballast") -> list[Document]:
    """What Helm installs; a fresh copy, which a test may change."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="any", namespace=namespace)
    found = []
    for text in files.values():
        found += [each for each in yaml.load_all(text, Loader=_OnceLoader) if each]
    return found


def installed(values: dict[str, Any], namespace: str = "ballast") -> Manifests:
    """With the namespace that deploy/README.md makes before."""
    return Manifests([*documents(values, namespace), {
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {
            "pod-security.kubernetes.io/enforce": "restricted"}}}])


def comparable(found: list[Document]) -> dict[tuple[str, str], Document]:
    """Kind and name -> object, of kustomize or of the chart, as both should make it.

    Three things differ on purpose: a person makes the namespace; a change of the configuration is
    an annotation of the pods and no hash in a name; and Helm keeps the claim of snapshots. Lists
    that components add to have no order of their own.
    """
    objects = {}
    for each in found:
        name = re.sub(r"^(ballast-config)-[0-9a-z]{10}$", r"\1", each["metadata"]["name"])
        each["metadata"]["name"] = name
        if each["kind"] == "PersistentVolumeClaim":
            each["metadata"].pop("annotations", None)
        objects[each["kind"], name] = each
    objects.pop(("Namespace", "ballast"), None)
    servers = Manifests(list(objects.values()))
    servers.servers["template"]["metadata"].pop("annotations", None)
    for what in ("env", "volumeMounts"):
        servers.container[what].sort(key=str)
    servers.pod["volumes"].sort(key=str)
    for volume in servers.pod["volumes"]:
        if volume["name"] == "config":
            volume["configMap"]["name"] = "ballast-config"
    return objects
