"""deploy/monitoring: rules, alerts and dashboard ask for a real server's exports."""

from __future__ import annotations

import json
import re
import shutil
from itertools import combinations
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy import promql
from deploy.manifests import Manifests, documents
from deploy.server import ON_LOOPBACK
from deploy.tools import DEPLOY, HANG_S, REPO, kubectls, run, tool
from deploy.training import train

FOLDER = DEPLOY / "monitoring"
OVERLAY = "base+monitoring"
# Labels that Prometheus adds: its own, and those from Kubernetes.
ADDED = {"job", "instance", "namespace"}
# Metrics whose series begin with their first event, with a second server, or with TLS.
BEGIN_LATE = {"ballast_frames_rejected_total", "ballast_tls_cert_expiry_timestamp_seconds",
              "ballast_admissions_refused_total", "ballast_peer_reachable",
              "ballast_handshake_failures_total"}
# Series made by Prometheus itself. Its alerts have no label in common.
OF_PROMETHEUS = {"up", "ALERTS"}
# The units of panels, by the names of Grafana.
UNITS = {"ops", "s", "Bps", "bytes", "none", "percentunit"}


def dashboard() -> dict:
    return json.loads((FOLDER / "dashboard.json").read_text())


def plain_rules(*arguments: str) -> str:
    """The rules as a Prometheus without the operator reads them."""
    done = run(FOLDER / "plain_rules.sh", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def groups() -> list[dict]:
    return yaml.safe_load(plain_rules())["groups"]


def rules() -> list[dict]:
    return [rule for group in groups() for rule in group["rules"]]


def alerts() -> list[dict]:
    return [rule for rule in rules() if "alert" in rule]


def panels(board: dict) -> list[dict]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def substituted(query: str) -> str:
    """A query as Grafana sends it, with everything chosen."""
    plain = query.replace("$__rate_interval", "1m")
    return re.sub(r"\$(namespace|cluster|server|run)\b", ".*", plain)


def queries(board: dict) -> list[str]:
    return [substituted(t["expr"]) for panel in panels(board) for t in panel["targets"]]


@pytest.fixture(scope="module")
def exported(ballastd, tmp_path_factory) -> dict[str, set[str]]:
    """Metric -> labels of a server after training; of metrics that begin with their first event,
    as the source declares them."""
    from deploy.server import Server

    data = tmp_path_factory.mktemp("monitoring") / "data"
    server = Server(ballastd, (*ON_LOOPBACK, "--data-dir", str(data)), {})
    try:
        server.wait_until_serving()
        train(server.address, "gpt", rounds=2)
        text = server.get("/metrics")[1]
    finally:
        server.kill()
    found = {"up": set(), "ALERTS": {"alertname", "alertstate", "service"}}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", text, re.M):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    page = (REPO / "docs/reference/metrics.md").read_text()
    declared = {name: set(re.findall(r"\w+", labels))
                for name, labels in re.findall(r"^\| `(\w+)` \| \w+ \| ([^|]*) \|", page, re.M)}
    for suffix in ("_bucket", "_count", "_sum"):
        declared |= {name + suffix: set(labels) for name, labels in declared.items()
                     if name + suffix in found}
    assert set(found) - OF_PROMETHEUS <= set(declared)
    late = {name: declared[name] for name in BEGIN_LATE}
    assert not set(late) & set(found)
    return found | late


def complaints(query: str, exported: dict[str, set[str]], recorded: set[str]) -> list[str]:
    """Names in a query that no server has."""
    wrong: list[str] = []
    known: set[str] = set(ADDED)
    for selector in promql.selectors(query):
        if selector.metric in recorded:
            continue
        labels = exported.get(selector.metric)
        if labels is None:
            wrong.append(f"no server exports {selector.metric}")
            continue
        known |= labels
        wrong += [f"{selector.metric} has no label {label}"
                  for label in selector.labels - labels - ADDED]
        if "job" not in selector.labels and selector.metric != "ALERTS":
            wrong.append(f"{selector.metric} of any job")
    return wrong + [f"no label {label}" for label in promql.grouped_by(query) - known]


def test_every_query_of_the_dashboard_finds_its_metrics(exported):
    for query in queries(dashboard()):
        assert complaints(query, exported, set()) == [], query


def test_every_rule_finds_its_metrics(exported):
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        assert complaints(rule["expr"], exported, recorded) == [], rule["expr"]


def test_the_first_row_says_whether_all_is_well():
    first, *rest = dashboard()["panels"]
    assert (first["type"], first["title"]) == ("row", "Is it well?")
    row = rest[:next(i for i, panel in enumerate(rest) if panel["type"] == "row")]
    assert {panel["type"] for panel in row} == {"stat", "table"}
    assert all(target["instant"] for panel in row for target in panel["targets"])
    # A panel that says "no data" in quiet times says nothing.
    counts = [t["expr"] for panel in row for t in panel["targets"] if "count(" in t["expr"]]
    assert counts and all("or vector(0)" in expr for expr in counts)
    (alarms,) = [expr for expr in counts if "ALERTS" in expr]
    # Ours, and none of another service's with the same name.
    assert 'service="ballast"' in alarms
    assert {alert["labels"].get("service") for alert in alerts()} == {"ballast"}


def test_every_metric_is_on_the_dashboard_or_in_a_rule(exported):
    asked = {s.metric for query in queries(dashboard()) for s in promql.selectors(query)}
    asked |= {s.metric for rule in rules() for s in promql.selectors(rule["expr"])}
    family = re.compile("_(bucket|count|sum)$")
    families = {family.sub("", name) for name in asked}
    families |= {"ballast_cluster_info"}  # for the dashboard's variables
    assert {name for name in exported if family.sub("", name) not in families} == set()


@pytest.mark.parametrize("query, complaint", [
    ('ballast_round_total{job="ballast", result="committed"}',
     "no server exports ballast_round_total"),
    ('ballast_grad_norm{job="ballast", jobs="a"}', "ballast_grad_norm has no label jobs"),
    ("ballast_grad_norm", "ballast_grad_norm of any job"),
    ('sum by (runs) (ballast_grad_norm{job="ballast"})', "no label runs")])
def test_a_query_for_nothing_is_named(query, complaint, exported):
    assert complaints(query, exported, set()) == [complaint]


def layout(board: dict) -> list[str]:
    """The faults of the panels, whatever they ask for."""
    wrong = []
    ids = [panel["id"] for panel in board["panels"]]
    wrong += [f"id {i} is there twice" for i in set(ids) if ids.count(i) > 1]
    for one, other in combinations([p["gridPos"] for p in board["panels"]], 2):
        if (one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
                and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]):
            wrong.append(f"{one} covers {other}")
    for panel in panels(board):
        title = panel["title"]
        if panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
            wrong.append(f"{title}: no unit")
        if len(panel.get("description", "")) < 20:
            wrong.append(f"{title}: no description")
        for target in panel["targets"]:
            if re.search(r"\b(rate|increase)\(.*\[(?!\$__rate_interval\])", target["expr"]):
                wrong.append(f"{title}: a rate over a time of its own")
        sources = [panel["datasource"], *(t["datasource"] for t in panel["targets"])]
        if any(source != {"type": "prometheus", "uid": "${datasource}"} for source in sources):
            wrong.append(f"{title}: a data source by name")
    return wrong


def test_the_panels_are_in_order():
    assert layout(dashboard()) == []
    names = [variable["name"] for variable in dashboard()["templating"]["list"]]
    assert names == ["datasource", "namespace", "cluster", "server", "run"]


@pytest.mark.parametrize("spoil", [
    lambda p: p[1].update(id=p[0]["id"]),
    lambda p: p[1]["gridPos"].update(p[0]["gridPos"]),
    lambda p: p[1]["fieldConfig"]["defaults"].pop("unit"),
    lambda p: p[1].pop("description"),
    lambda p: p[0]["targets"][0].update(expr="rate(up[5m])"),
    lambda p: p[1].update(datasource="Prometheus")])
def test_a_panel_out_of_order_is_found(spoil):
    board = dashboard()
    spoil(panels(board))
    assert layout(board) != []


@pytest.mark.parametrize("command", ["check rules rules.yaml", "test rules rules_test.yaml"])
def test_promtool_finds_no_fault(command, tmp_path):
    (tmp_path / "rules.yaml").write_text(plain_rules())
    shutil.copy(FOLDER / "rules_test.yaml", tmp_path)
    # It takes a quarter of a minute of one processor, which others may want, too.
    done = run(tool("promtool"), *command.split(), cwd=tmp_path, within_s=10 * HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_reads_the_configuration(tmp_path):
    shutil.copy(FOLDER / "prometheus.yml", tmp_path)
    (tmp_path / "rules.yaml").write_text(plain_rules())
    (tmp_path / "targets.json").write_text('[{"targets": ["127.0.0.1:9000"]}]')
    done = run(tool("promtool"), "check", "config", "prometheus.yml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_every_alert_has_a_case_that_fires_and_one_that_rests():
    cases = [case for test in yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]
             for case in test["alert_rule_test"]]
    for alert in alerts():
        fires = {bool(case.get("exp_alerts")) for case in cases
                 if case["alertname"] == alert["alert"]}
        assert fires == {True, False}, alert["alert"]


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_has_its_entry(alert):
    """With its meaning, where to look, the next step, and when to ignore it."""
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert anchor == alert["alert"].lower()
    entries = re.split(r"^### ", (REPO / page).read_text(), flags=re.M)
    entry = next(e for e in entries if e.startswith(alert["alert"] + "\n"))
    for word in ("Means", "Look at", "Do", "Ignore it"):
        assert f"- **{word}**" in entry, f"{alert['alert']}: {word}"
    assert alert["for"] and alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"]


def test_recorded_names_say_level_metric_and_operation():
    for rule in rules():
        assert "alert" in rule or re.fullmatch(r"\w+:\w+:\w+", rule["record"])


# --- the overlay ---

_STRICT = {"type": "object", "additionalProperties": False}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_RULE = _STRICT | {"required": ["expr"], "properties": {
    "record": {"type": "string"}, "alert": {"type": "string"}, "expr": {"type": "string"},
    "for": {"type": "string"}, "labels": _TEXTS, "annotations": _TEXTS}}
# Of the Prometheus operator's kinds, the fields that our files use.
SCHEMAS = {
    "PrometheusRule": _STRICT | {"required": ["groups"], "properties": {"groups": {
        "type": "array", "items": _STRICT | {"required": ["name", "rules"], "properties": {
            "name": {"type": "string"}, "rules": {"type": "array", "items": _RULE}}}}}},
    "ServiceMonitor": _STRICT | {"required": ["selector", "endpoints"], "properties": {
        "jobLabel": {"type": "string"},
        "selector": _STRICT | {"properties": {"matchLabels": _TEXTS}},
        "endpoints": {"type": "array", "items": _STRICT | {"properties": {
            "port": {"type": "string"}, "path": {"type": "string"},
            "authorization": _STRICT | {"properties": {"credentials": _STRICT | {"properties": {
                "name": {"type": "string"}, "key": {"type": "string"}}}}},
            "interval": {"type": "string", "pattern": "^[0-9]+s$"}}}}}},
}


def overlay() -> Manifests:
    return Manifests(documents(kubectls()["new"], OVERLAY))


def test_the_overlay_fits_its_schemas():
    for document in overlay().documents:
        schema = SCHEMAS.get(document["kind"])
        if schema is None:
            kubernetes_validate.validate(document, "1.37", strict=True)
            continue
        assert document["apiVersion"] == "monitoring.coreos.com/v1"
        jsonschema.validate(document["spec"], schema)


def test_the_overlay_has_the_same_rules_and_dashboard():
    found = overlay()
    assert found.one("PrometheusRule")["spec"]["groups"] == groups()
    data = found.one("ConfigMap", "ballast-dashboard")["data"]
    assert json.loads(data["dashboard.json"]) == dashboard()


def test_plain_rules_say_where_runbooks_are():
    page = "https://wiki.example.org/ballast/operations.md"
    assert plain_rules(page) == plain_rules().replace("docs/operations.md#", f"{page}#")
    assert plain_rules(page).count(f"runbook_url: {page}#") == len(alerts())
    for wrong in (["--help"], ["a|b"], ["a", "b"]):
        done = run(FOLDER / "plain_rules.sh", *wrong)
        assert (done.returncode, done.stdout) == (2, "") and "usage" in done.stderr


def test_an_overlay_of_a_user_says_where_runbooks_are(tmp_path):
    page = "https://wiki.example.org/ballast/operations.md"
    copied = tmp_path / "deploy"
    shutil.copytree(DEPLOY / "kubernetes", copied / "kubernetes")
    shutil.copytree(DEPLOY / "monitoring", copied / "monitoring")
    own = copied / "own"
    own.mkdir()
    text = (DEPLOY / "README.md").read_text()
    shown = re.search(r"```yaml\n(# own/kustomization.yaml\n.*?)(# own/runbooks.yaml\n.*?)```",
                      text, re.S)  # fmt: skip
    (own / "kustomization.yaml").write_text(shown[1])
    (own / "runbooks.yaml").write_text(shown[2])
    done = run(kubectls()["new"], "kustomize", own)
    assert done.returncode == 0, done.stderr
    (found,) = [d for d in yaml.safe_load_all(done.stdout) if d["kind"] == "PrometheusRule"]
    links = [rule["annotations"]["runbook_url"] for group in found["spec"]["groups"]
             for rule in group["rules"] if "alert" in rule]  # fmt: skip
    assert [link.partition("#")[0] for link in links] == [page] * len(alerts())
    assert len(set(links)) == len(links)


def test_the_overlay_finds_the_servers_of_the_base():
    base, found = Manifests(documents(kubectls()["new"], "base")), overlay()
    monitor = found.one("ServiceMonitor")["spec"]
    chosen = [s for s in base.all("Service")
              if monitor["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()]
    assert [s["metadata"]["name"] for s in chosen] == [base.servers["serviceName"]]
    assert chosen[0]["metadata"]["labels"][monitor["jobLabel"]] == "ballast"
    ports = {p["name"]: p["port"] for p in chosen[0]["spec"]["ports"]}
    policy = found.one("NetworkPolicy", "ballast-metrics")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= base.labels.items()
    opened = [p["port"] for rule in policy["ingress"] for p in rule["ports"]]
    assert opened == [ports[monitor["endpoints"][0]["port"]]]


def test_no_file_here_is_without_a_test():
    """A new file needs one; so does a new panel that only looks like JSON."""
    assert {path.name for path in Path(FOLDER).iterdir()} == {
        "dashboard.json", "kustomization.yaml", "plain_rules.sh", "prometheus.yml", "rules.yaml",
        "rules_test.yaml", "train.py", "up.sh"}  # The last two: test_up.py.
