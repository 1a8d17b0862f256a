"""DuckDB takes trace files in as Spark does: each line once, under any name, and bad lines as bad lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.engines import analysis_of, count_of, duckdb, take_in
from tests.analysis.plain import compressed, plain
from tunnel.analysis.cli import main
from tunnel.analysis.engines.duck import DuckEngine, _size
from tunnel.analysis.engines.failures import JobError, SetupError
from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.engines.schema import COLUMNS
from tunnel.analysis.kept.ingest import compact
from tunnel.analysis.kept.ledger import open_ledger
from tunnel.analysis.page.report import render
from tunnel.ground.exit_codes import INTERNAL, OK, USAGE

LINES = (
    '{"version":1,"time_us":5,"node":"a","event":"attached","writer":"w","number":1}',
    "no json",
    '{"version":1,"time_us":"soon","node":"a","event":"attached","writer":"w","number":2}',
    '{"version":1,"node":"a","event":"attached","writer":"w","number":3}',
    "[1]",
    "{}",
    '{"version":9,"time_us":7,"node":"a","event":"beamed","writer":"w","number":4}',
)


def test_files_are_read_under_any_name(tmp_path: Path) -> None:
    compressed(tmp_path / "traces", "one", 5)
    plain(tmp_path / "traces" / "node=7", "two ä%41 [b]*?{c,d}'.jsonl", 3)
    plain(tmp_path / "traces" / "node=7", "two ä%41 b1x{c,d}'.jsonl", 4)
    with duckdb() as engine:
        intake = take_in(engine, tmp_path / "traces", tmp_path / "tables [1]*")
        assert count_of(engine, tmp_path / "tables [1]*") == 12
        assert sorted(row["file"] for row in intake.found) == sorted(file.name for file in intake.files)


@pytest.mark.parametrize("named", ["node=7", "event=x", "version=3", "number=abc", "source=5"])
def test_the_name_of_a_folder_says_nothing_of_its_events(named: str, tmp_path: Path) -> None:
    traces, tables = tmp_path / named / "traces", tmp_path / named / "tables"
    plain(traces / named, "a.jsonl", 2)
    with duckdb() as engine:
        take_in(engine, traces, tables)
        (row,) = engine.rows("select node, event, version, count(*) as n from stored group by all")
    assert row == {"node": "a", "event": "attached", "version": 1, "n": 2}


@pytest.mark.parametrize("event", ["packet_sent", "packets_acked", "stream_data_waited", "clock_read"])
def test_a_line_with_an_impossible_number_spoils_no_report(tmp_path: Path, event: str) -> None:
    """The numbers that are just possible leave room for all that the queries do with them."""
    own: dict[str, Any] = {"version": 1, "time_us": 1_000, "node": "a", "event": event, "size_bytes": 100, "count": 1}
    own |= {"connection": 1, "peer": 2, "packet_type": 4, "writer": "w"}
    names = [name for name, kind in COLUMNS.items() if kind == "bigint"]
    lines: list[dict[str, Any]] = []
    for name in names:
        most = 1 << (52 if name in ("time_us", "wall_us") else 50)
        for value in (most, -most, most + 1, -most - 1, (1 << 63) - 1):
            lines.append(own | {"sequence": len(lines), "number": len(lines) + 1} | {name: value})
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with duckdb() as engine:
        result = analysis_of(engine, tmp_path / "traces", tmp_path / "tables")
    assert [row["events"] for row in result.files] == [2 * len(names)]
    assert [row["bad_lines"] for row in result.files] == [3 * len(names)]
    assert render(result, "t")


def test_lines_that_do_not_count_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.jsonl").write_text("\n".join(LINES) + "\n")
    with duckdb() as engine:
        result = analysis_of(engine, tmp_path / "traces", tmp_path / "tables")
    assert sum(row["events"] for row in result.files) == 1
    assert sum(row["bad_lines"] for row in result.files) == 5
    assert {(row["problem"], row["count"], row["version"]) for row in result.problems if row["problem"] != "lines"} == {
        ("version", 1, 9)
    }


def test_tables_without_rows_give_a_result(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with duckdb() as engine:
        result = analysis_of(engine, tmp_path, tmp_path / "_tables")
    assert result.totals["streams"] == 0
    assert [row["problem"] for row in result.problems] == ["empty"]


def test_a_file_that_vanishes_is_an_error_and_nothing_is_added(tmp_path: Path) -> None:
    path = compressed(tmp_path, "one", 9)
    content = path.read_bytes()
    work = tmp_path / "_tables"

    def progress(text: str) -> None:
        if text.startswith("adding"):
            path.unlink()

    with duckdb() as engine:
        with open_ledger(LocalFolder(work)) as ledger, pytest.raises((JobError, SetupError)) as failed:
            compact(engine, LocalFolder(tmp_path), ledger, progress)
        assert str(failed.value).startswith("DuckDB's job failed (")
        assert "and nothing was added to the tables in" in str(failed.value)
        assert count_of(engine, work) == 0
        path.write_bytes(content)
        take_in(engine, tmp_path, work)
        assert count_of(engine, work) == 9


def test_a_command_that_is_killed_before_its_record_adds_nothing(tmp_path: Path) -> None:
    compressed(tmp_path, "one", 9)
    work = tmp_path / "_tables"
    arguments = [str(tmp_path), str(work), f"{work / 'commits'}/.", "2", "duckdb"]
    process = subprocess.run([sys.executable, "-m", "tests.analysis.killed", *arguments], check=False)
    assert process.returncode < 0
    assert list(work.glob("events/*/*/*.parquet"))
    with duckdb() as engine:
        assert count_of(engine, work) == 0
        take_in(engine, tmp_path, work)
        assert count_of(engine, work) == 9


def test_a_table_that_was_cut_off_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compressed(tmp_path, "one", 9)
    assert main(["compact", str(tmp_path)]) == OK
    (table,) = (tmp_path / "_tables").glob("events/*/*/*.parquet")
    table.write_bytes(table.read_bytes()[:-20])
    capsys.readouterr()
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html")]) == INTERNAL
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("tunnel-traces: DuckDB's job failed (")
    assert table.name in error
    assert "no report was written" in error


def test_the_page_and_the_numbers_say_which_engine_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compressed(tmp_path, "one", 9)
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html"), "--json"]) == OK
    assert '"engine": "DuckDB ' in capsys.readouterr().out
    assert "Computed by DuckDB " in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(("memory", "size"), [("3g", "3GiB"), ("512m", "512MiB"), ("1000", "1000B"), ("2 GB", "2GiB")])
def test_memory_is_written_as_for_java(memory: str, size: str) -> None:
    assert _size(memory) == size


def test_memory_that_is_no_size_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--memory", "much"]) == USAGE
    assert "--memory much is no size" in capsys.readouterr().err


def test_more_than_the_memory_is_spilled_to_the_directory(tmp_path: Path) -> None:
    engine = DuckEngine("100m", tmp_path)
    with engine.keep("numbers", "select range as n, range::varchar || repeat('x', 90) as text from range(3_000_000)"):
        assert engine.rows("select count(*) as n from numbers") == [{"n": 3_000_000}]
        assert list(tmp_path.rglob("*.tmp"))
    engine.close()
