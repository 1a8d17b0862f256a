"""docs/OPERATIONS.md: its first steps as written, in an empty folder and home; and a section for each alert."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from loadtests.harness.tree import ROOT
from tests.metrics.document import ALL
from tests.pasting import blocks, pasted, section
from tunnel.process.service_manager import STOP_SPARE_S
from tunnel_servlet.settings import AuditSettings, ServiceLimits

STEPS_S = 540  # they take 50 s, and more on a busy machine
LIMITS = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "RELAY.md").read_text(), re.MULTILINE))
TEXT = (ROOT / "docs" / "OPERATIONS.md").read_text()
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "tunnel.rules.yml").read_text())
ALERTS = {rule["alert"]: rule["labels"]["severity"] for group in RULES["groups"] for rule in group["rules"]}


@pytest.mark.real("bash", "curl", "openssl", "prometheus", "promtool")
@pytest.mark.timeout(STEPS_S + 60)
def test_the_first_steps_lead_from_nothing_to_metrics_that_are_scraped(tmp_path: Path) -> None:
    install, *steps = blocks(section(TEXT, "## From nothing"))
    assert install.splitlines()[-1] == "pip install '.[metrics]'"
    code, said = pasted("".join([f"ln -s {ROOT}/deploy deploy\n", *steps]), tmp_path, STEPS_S)
    assert code == 0, said
    lines = said.splitlines()
    assert "Hello through the tunnel" in lines
    assert "ready" in lines  # /readyz
    assert any(line.startswith("allowed\t127.0.0.1:8000\t") for line in lines)  # the rule
    assert any(re.match(r"a\d+-\w+ +exits ", line) for line in lines), said  # ps attachments: the separate exit
    assert any("\tconnection_allowed\tann\t127.0.0.1:8000\t" in line for line in lines)
    assert any(re.match(r"tunnel_ready\{.*\} => 1 @", line) for line in lines)
    work = tmp_path / "work"
    assert {path.name for path in work.iterdir()} == {"deploy", "operations"}
    assert (work / "operations" / "prometheus" / "wal").is_dir()
    assert not (tmp_path / "home" / ".config" / "tunnel" / "login.json").exists()


def test_each_alert_has_a_section_that_says_how_urgent_it_is() -> None:
    parts = re.split(r"^### ", section(TEXT, "## Alerts"), flags=re.MULTILINE)[1:]
    found = {}
    for part in parts:
        name, _, text = part.partition("\n")
        found[name] = text.split(".")[0].strip().lower()
        assert len(text.split()) > 15, name
    assert found == ALERTS


def test_the_metrics_that_it_names_exist() -> None:
    named = set(re.findall(r"\b(?:tunnel|process)_[a-z_]+\b", TEXT))
    assert len(named) > 10
    assert {name for name in named - LIMITS if name not in ALL} == set()


def test_the_limits_that_it_names_are_limits_of_the_relay() -> None:
    """Their table, with what reaching each one looks like, is checked by tests/servlet/test_config.py."""
    of_the_audit = {item.name for item in msgspec.structs.fields(AuditSettings)}
    named = set(re.findall(r"`(\w+_(?:max|seconds|minute))`", TEXT)) - of_the_audit - set(ALL)
    assert len(named) > 10
    assert named <= LIMITS


def test_the_time_of_a_unit_to_stop_is_that_of_the_relay_and_some_more() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.production.yml").read_text())
    assert compose["services"]["relay"]["stop_grace_period"] == f"{ServiceLimits().drain_seconds + STOP_SPARE_S:g}s"
