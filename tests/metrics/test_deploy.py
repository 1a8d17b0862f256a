"""The document, the dashboards and the alerts: each metric that they name exists, and each that exists is explained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.metrics.document import ALL, DOCUMENT, write
from tunnel.metrics.metric import OPEN_LABELS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
NAMED = re.compile(r"\b(?:tunnel|process)_[a-z_]+\b")
SELECTOR = re.compile(r"([a-z_]+)\{([^}]*)\}")
LABELLED = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
OF_PROMETHEUS = {"instance", "job", "le"}


def metric_of(name: str) -> str:
    """Return the metric of a series: histograms have three."""
    plain = re.sub(r"_(bucket|sum|count)$", "", name)
    return plain if ALL.get(plain, ALL["tunnel_ready"]).kind == "histogram" else name


def queries() -> Iterator[tuple[str, str]]:
    """Yield (file, query) of all dashboards and alerts, and the series of their tests."""
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            yield from ((path.name, target["expr"]) for target in panel["targets"])
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield path.name, variable["query"]["query"]
    rules = DEPLOY / "prometheus" / "tunnel.rules.yml"
    for rule in alerts():
        yield rules.name, rule["expr"]
    tests = DEPLOY / "prometheus" / "tunnel.tests.yml"
    for test in yaml.safe_load(tests.read_text())["tests"]:
        yield from ((tests.name, series["series"]) for series in test["input_series"])


def alerts() -> list[dict[str, Any]]:
    found = yaml.safe_load((DEPLOY / "prometheus" / "tunnel.rules.yml").read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def unknown(query: str) -> list[str]:
    """Return the metrics and labels of a query that no process shows, and values that a label never has."""
    found = [name for name in NAMED.findall(query) if metric_of(name) not in ALL]
    for name, selected in SELECTOR.findall(query):
        metric = ALL.get(metric_of(name))
        if metric is None:
            continue
        for label, values in LABELLED.findall(selected):
            if label in OF_PROMETHEUS:
                continue
            if label not in metric.labels:
                found.append(f"{name}: {label}")
            elif label not in OPEN_LABELS:
                found += [f"{label}={value}" for value in values.split("|") if value not in metric.labels[label]]
    return found


def test_the_document_lists_every_metric_with_its_meaning() -> None:
    text = DOCUMENT.read_text()
    assert text == write(text), "run: python -m tests.metrics.document"
    for name, metric in ALL.items():
        assert text.count(f"| `{name}` |") == 1
        assert metric.meaning.endswith(".")


def test_names_and_units() -> None:
    for name, metric in ALL.items():
        assert re.fullmatch(r"(tunnel|process)_[a-z]+(_[a-z]+)*", name)
        assert name.endswith("_total") == (metric.kind == "counter")


@pytest.mark.parametrize(("file", "query"), list(queries()))
def test_what_dashboards_and_alerts_name_exists(file: str, query: str) -> None:
    assert unknown(query) == [], file


@pytest.mark.parametrize(
    "query",
    [
        "rate(tunnel_no_such_total[5m])",
        'tunnel_routes{state="open"}',
        'tunnel_routes{kind="bound"}',
        'tunnel_dials_total{outcome=~"opened|lost"}',
        "tunnel_ready_bucket",
    ],
)
def test_what_does_not_exist_is_found(query: str) -> None:
    assert len(unknown(query)) == 1


def test_there_are_three_dashboards_and_each_panel_asks_something() -> None:
    assert [path.stem for path in DASHBOARDS] == ["overview", "paths", "user"]
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        assert all(panel["targets"] and panel["title"] for panel in board["panels"])
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
        assert len(set(places)) == len(places)


def test_each_alert_says_what_to_do_and_has_a_test() -> None:
    tests = yaml.safe_load((DEPLOY / "prometheus" / "tunnel.tests.yml").read_text())["tests"]
    tested = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert {rule["alert"] for rule in alerts()} == tested
    for rule in alerts():
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["labels"]["severity"] in ("page", "ticket")
