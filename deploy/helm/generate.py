"""Makes the templates of the Helm chart from ../kubernetes, so that the two cannot differ.

Comes from: a person who changed something there: .venv/bin/python deploy/helm/generate.py. Goes to:
Chart.yaml, values.schema.json and templates of ballast/. kubectl kustomize renders each choice,
which is a component, and its additions, changes and removals are in the template under its
condition. The tables of parameters.py say where a value of values.yaml replaces a fixed text.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

import parameters

HERE = Path(__file__).resolve().parent
KUBERNETES = HERE.parent / "kubernetes"
CHART = HERE / "ballast"
# Components of kustomize with a value NAME.enabled here, each with those that it needs. The first
# is the base alone.
CHOICES = {"": (), "nvme": ("nvme",), "tls": ("tls",), "tokens": ("tls", "tokens"),
           "monitoring": ("monitoring",), "snapshots": ("snapshots",)}
HEADER = "{{- /* Made by deploy/helm/generate.py from deploy/kubernetes: change it there. */ -}}\n"

# A value in each choice with it.
Variants = dict[str, Any]


def kustomized(components: tuple[str, ...]) -> dict[str, dict]:
    """KIND/NAME -> object, without the hash in names, which an annotation of the pods replaces."""
    with tempfile.TemporaryDirectory() as own:
        above = os.path.relpath(KUBERNETES, os.path.realpath(own))
        (Path(own) / "kustomization.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [f"{above}/base"],
            "components": [f"{above}/components/{name}" for name in components]}))
        kubectl = Path(sys.executable).parent / "kubectl"
        text = subprocess.run([kubectl if kubectl.is_file() else "kubectl", "kustomize", own],
                              check=True, capture_output=True, text=True).stdout
    text = re.sub(r"\b(ballast-config)-[0-9a-z]{10}\b", r"\1", text)
    return {f"{found['kind']}/{found['metadata']['name']}": found
            for found in yaml.safe_load_all(text)}


def condition(holders: list[str], context: list[str]) -> str:
    """An expression, true in `holders` and false elsewhere in `context`; "": always."""
    if holders == context:
        return ""
    named = holders if "" not in holders else [c for c in context if c not in holders]
    named = [c for c in named if not any(o in named for o in CHOICES[c][:-1])]
    either = [f".Values.{c}.enabled" for c in named]
    text = either[0] if len(either) == 1 else f"or {' '.join(either)}"
    if "" not in holders:
        return text
    return f"not {text if len(either) == 1 else f'({text})'}"


def ordered(lists: list[list[str]]) -> list[str]:
    """All names; one that the first list lacks comes before its successor in its own list."""
    names = list(lists[0])
    for each in lists[1:]:
        for i, name in enumerate(each):
            if name not in names:
                after = next((n for n in each[i + 1:] if n in names), None)
                names.insert(len(names) if after is None else names.index(after), name)
    return names


def name_of(item: Any) -> str:
    """The key that tells an item of a list from the others."""
    if isinstance(item, dict):
        named = item.get("name") or item.get("metadata", {}).get("name")
        return named or json.dumps(item, sort_keys=True)
    return str(item)


def scalar(value: Any, indent: int) -> str:
    """Its form after a key; a text of several lines is a block."""
    if isinstance(value, str) and "\n" in value:
        mark = "|" if value.endswith("\n") else "|-"
        return "\n".join([mark, *(" " * indent + line if line else "" for line in
                                  value.rstrip("\n").split("\n"))])
    return yaml.safe_dump(value, width=10_000).removesuffix("...\n").rstrip("\n")


def leaf(variants: Variants, path: str, indent: int) -> str:
    """A scalar, or the template that makes it."""
    made = parameters.VALUES.get(path)
    if made is not None:
        return made
    values = {c: parameters.filled(v, path) for c, v in variants.items()}
    usual = next(iter(values.values()))
    other = {c: v for c, v in values.items() if v != usual}
    if not other:
        return scalar(usual, indent)
    assert len(set(other.values())) == 1, f"{path} has more than two values: {values}"
    when = condition(list(other), list(values))
    then, otherwise = scalar(other.popitem()[1], 0), scalar(usual, 0)
    return f"{{{{ if {when} }}}}{then}{{{{ else }}}}{otherwise}{{{{ end }}}}"


def body(variants: Variants, path: str, indent: int) -> list[str]:
    """The lines of a map, or of a list whose items have names."""
    context = list(variants)
    is_map = isinstance(next(iter(variants.values())), dict)
    entries = {c: v if is_map else {name_of(item): item for item in v}
               for c, v in variants.items()}
    lines: list[str] = []
    opened = ""  # the condition of the line before
    for name in ordered([list(e) for e in entries.values()]):
        here = {c: e[name] for c, e in entries.items() if name in e}
        below = f"{path}/{name}"
        if below in parameters.WITHOUT:
            continue
        wanted = condition(list(here), context)
        if wanted and wanted == opened:
            lines.pop()  # one block for both
        elif wanted:
            lines.append(f"{{{{- if {wanted} }}}}")
        lines += (pair if is_map else item)(name, here, below, indent)
        lines += ["{{- end }}"] if wanted else []
        opened = wanted
    return lines + [" " * indent + line if not line.startswith("{{-") else line
                    for line in parameters.ADDED.get(path, [])]


def pair(key: str, variants: Variants, path: str, indent: int) -> list[str]:
    """key: value."""
    one = next(iter(variants.values()))
    start = " " * indent + f"{key}:"
    if isinstance(one, (dict, list)) and one:
        return [start, *body(variants, path, indent + 2)]
    return f"{start} {leaf(variants, path, indent + 2)}".split("\n")


def item(_: str, variants: Variants, path: str, indent: int) -> list[str]:
    """- value."""
    one = next(iter(variants.values()))
    if not isinstance(one, dict) or not one:
        return [" " * indent + f"- {leaf(variants, path, indent + 2)}"]
    lines = body(variants, path, indent + 2)
    assert not lines[0].startswith("{{-"), f"{path} begins with a condition"
    lines[0] = " " * indent + "- " + lines[0].lstrip()
    return lines


def templates(rendered: Variants) -> dict[str, str]:
    """The name of each template -> its text. `rendered`: the objects of each choice."""
    made = {}
    for key in ordered([list(found) for found in rendered.values()]):
        if key in parameters.BY_HAND:
            continue
        variants = {c: found[key] for c, found in rendered.items() if key in found}
        wanted = parameters.WHEN.get(key) or condition(list(variants), list(rendered))
        lines = parameters.FIRST.get(key, []) + ([f"{{{{- if {wanted} }}}}"] if wanted else [])
        lines += body(variants, key, 0) + (["{{- end }}"] if wanted else [])
        made[f"{key.lower().replace('/', '-')}.yaml"] = HEADER + "\n".join(lines) + "\n"
    return made


def schema(value: Any, limits: dict[str, dict], path: str = "") -> dict[str, Any]:
    """Of values.yaml: a value has the type of its default, and no value has another name."""
    if isinstance(value, dict) and path not in parameters.OPEN:
        return {"type": "object", "additionalProperties": False, "properties": {
            name: schema(below, limits, f"{path}/{name}") for name, below in value.items()}}
    kind = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return {"type": kind[type(value)], **limits.get(path, {})}


def version() -> str:
    """Of the packages, and so of the image."""
    text = (HERE.parents[1] / "client/python/ballast/version.py").read_text()
    return re.search(r'"([\d.]+)"', text)[1]


def chart() -> dict[Path, str]:
    """Each generated file -> its content."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rendered = {choice: kustomized(components) for choice, components in CHOICES.items()}
    files = {CHART / "templates" / name: text for name, text in templates(rendered).items()}
    properties = schema(values, parameters.limits([
        found["StatefulSet/ballast"] for found in rendered.values()]))
    # Charts with this one below them pass `global`.
    properties["properties"]["global"] = {"type": "object"}
    files[CHART / "values.schema.json"] = json.dumps(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **properties}, indent=2) + "\n"
    files[CHART / "Chart.yaml"] = parameters.CHART.replace("VERSION", version())
    return files


def main() -> int:
    """Writes the generated files, or with --check only names those that differ; 1 then."""
    made = chart()
    old = [path for path in (CHART / "templates").iterdir()
           if path not in made and path.read_text().startswith(HEADER)]
    stale = old + [path for path, text in made.items()
                   if not path.is_file() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in sorted(stale):
            print(f"{path.relative_to(HERE)} is not what deploy/kubernetes makes now; "
                  "run deploy/helm/generate.py")
        return 1 if stale else 0
    for path in old:
        path.unlink()
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
