"""The generated day: each repetition is a run of its own, and the report has its numbers."""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from loadtests.bench import day
from tests.analysis.engines import analysis_of, duckdb
from tunnel.traces.jsonl import read_trace

RELAYS = 2


@pytest.fixture
def two_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day, "RELAYS", RELAYS)
    monkeypatch.setattr(day, "BYTES_EACH", 20_000)


def test_a_day_repeats_a_run_with_names_and_ids_of_its_own(tmp_path: Path, two_relays: None) -> None:
    one = day.write_day(tmp_path / "one", 1)
    written = day.write_day(tmp_path / "three", 2 * one.events + 1)
    assert (written.events, written.connections, written.relays) == (3 * one.events, 3 * one.connections, RELAYS)
    records = [each for path in sorted((tmp_path / "three").iterdir()) for each in read_trace(path)]
    numbers, ids = defaultdict[str, list[int]](list), {each.connection for each in records if each.connection}
    for record in records:
        numbers[record.writer].append(record.number)
    assert len(ids) == 2 * written.connections  # each end has its own
    assert sorted(map(len, numbers.values())) == [one.events, 2 * one.events]
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())
    assert {each.text for each in records if each.event == "attached" and each.node.startswith("client")} == {
        "relay-0",
        "relay-1",
    }
    assert max(each.time_us for each in records) > 2 * day.DAY_S / 3 * 1e6


def test_the_report_of_a_day_has_its_numbers(tmp_path: Path, two_relays: None) -> None:
    one = day.write_day(tmp_path / "one", 1)
    day.write_day(tmp_path / "three", 2 * one.events + 1)
    with duckdb() as engine:
        whole = analysis_of(engine, tmp_path / "three", tmp_path / "whole")
        part = analysis_of(engine, tmp_path / "one", tmp_path / "part")
    for name in ("both_ends", "packets", "bytes", "lost", "payload_bytes"):
        assert whole.totals[name] == 3 * part.totals[name] > 0, name
    assert [row["missing"] for row in whole.writers] == [0, 0]


def test_what_exceeds_its_limit_or_differs_from_the_trace_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(written: day.Day, traces: Path, options: argparse.Namespace) -> dict[str, Any]:
        taken = {"exit_code": 0, "cpu_s": 31.0, "wall_s": 40.0, "peak_gib": 1.0, "disk_gib": 2.0}
        return taken | {"wrong": {"streams": 23}}

    monkeypatch.setattr(day, "_rows", rows)
    monkeypatch.setattr(day, "BYTES_EACH", 20_000)
    assert day.main(["--events", "1", "--cpu", "30"]) == 1
    assert "streams: 23; cpu_s 31.0 > 30" in capsys.readouterr().out
