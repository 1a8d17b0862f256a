"""The command `sql`: queries over documented tables, which reach no file, no network and no setting."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tests.analysis.engines import duckdb, take_in
from tests.analysis.plain import compressed, plain
from tunnel.analysis.cli import main
from tunnel.analysis.engines.duck import SELECTED_MAX, DuckEngine
from tunnel.analysis.engines.failures import QueryError
from tunnel.analysis.engines.queries import KEPT, TABLES, needed
from tunnel.analysis.results.analyse import begin, streams_kept
from tunnel.analysis.words import aligned
from tunnel.ground.exit_codes import INTERNAL, OK, USAGE

DOCUMENT = Path(__file__).parents[2] / "docs" / "ANALYSIS.md"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckEngine]:
    """An engine that has been shut, over a trace of nine events."""
    directory = tmp_path_factory.mktemp("sql")
    compressed(directory, "one", 9)
    with duckdb() as opened:
        begin(opened, take_in(opened, directory, directory / "_tables"))
        with streams_kept(opened):
            opened.shut()
            yield opened


def test_a_query_reads_the_events(engine: DuckEngine) -> None:
    columns, rows = engine.select("select event, count(*) as n from events group by event order by event")
    assert columns == ["event", "n"]
    assert ("attached", 9) in rows


@pytest.mark.parametrize("name", TABLES)
def test_each_documented_table_can_be_read(engine: DuckEngine, name: str) -> None:
    engine.select(f"select * from {name} limit 1")
    assert f"| `{name}` |" in DOCUMENT.read_text()
    assert re.match("-- ", (files("tunnel.analysis") / "sql" / f"{name}.sql").read_text())


@pytest.mark.parametrize(
    "text",
    [
        "select * from read_text('/etc/hostname')",
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/hostname'",
        "select * from glob('/etc/*')",
        "select * from read_parquet('http://127.0.0.1:1/x')",
        "select * from stored",
        "copy events to '/tmp/copied.csv'",
        "set threads = 1",
        "set enable_external_access = true",
        "attach '/tmp/attached.db'",
        "install httpfs",
        "load httpfs",
        "pragma enable_profiling",
        "insert into events select * from events",
        "drop table events",
        "create table mine as select 1",
        "select 1; select 2",
        "",
        "nonsense",
    ],
)
def test_nothing_else_is_reachable(engine: DuckEngine, text: str) -> None:
    with pytest.raises(QueryError) as refused:
        engine.select(text)
    assert "\n" not in str(refused.value)
    assert engine.select("select count(*) from events where event = 'attached'")[1] == [(9,)]


def test_a_result_that_python_could_not_hold_is_refused(engine: DuckEngine) -> None:
    assert len(engine.select(f"from range({SELECTED_MAX})")[1]) == SELECTED_MAX
    with pytest.raises(QueryError, match="more than 100,000 rows: add LIMIT"):
        engine.select(f"from range({SELECTED_MAX + 1})")


def test_two_columns_of_one_name_are_refused(engine: DuckEngine) -> None:
    with pytest.raises(QueryError, match="two columns are called a: give one another name with AS"):
        engine.select("select 1 as a, 2 as a")


def test_settings_stay_as_they_are_even_past_the_check_of_statements(engine: DuckEngine) -> None:
    for text in ("set enable_external_access = true", "set threads = 1"):
        with pytest.raises(Exception, match="the configuration has been locked"):
            engine.rows(text)
    with pytest.raises(Exception, match="file system operations are disabled"):
        engine.rows("copy events to '/tmp/copied.csv'")


def test_the_command_prints_rows_and_takes_in_new_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain(tmp_path, "a.jsonl", 2)
    query = "select node, count(*) as n, null as nothing from events group by node"
    assert main(["sql", str(tmp_path), query]) == OK
    assert capsys.readouterr().out == "node  n  nothing\na     2\n"
    plain(tmp_path, "b.jsonl", 3)
    assert main(["sql", str(tmp_path), query, "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == [{"node": "a", "n": 5, "nothing": None}]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("select 1 where 'streams of events' is null", ["events", "flow", "packets", "streams"]),
        ("select 1", []),
        ('from "STREAMS"', ["flow", "packets", "streams"]),
        ("from query_table('packets')", ["flow", "packets"]),
        ("from steps", ["flow", "packets", "steps", "streams", "unread"]),
    ],
)
def test_only_tables_that_the_query_names_are_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, made: list[str]
) -> None:
    plain(tmp_path, "a.jsonl", 2)
    for query in (text, f"select table_name as name from duckdb_tables() where '{text.replace(chr(39), '')}' <> ''"):
        assert main(["sql", str(tmp_path), query, "--json"]) == OK
        found = json.loads(capsys.readouterr().out)
    assert sorted({row["name"] for row in found} & {*KEPT, "events"}) == made


def test_the_stalls_need_everything() -> None:
    assert needed(["stalls"]) == [name for name in KEPT if name not in ("samples", "least_trips")]


def test_a_wrong_query_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain(tmp_path, "a.jsonl", 2)
    assert main(["sql", str(tmp_path), "select nothing from events"]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith('tunnel-traces: Binder Error: Referenced column "nothing" not found')
    assert 'Candidate bindings: "' in error
    assert error.endswith(
        "(in DuckDB's SQL, over the tables events, packets, streams, steps, stalls: docs/ANALYSIS.md explains them)\n"
    )
    assert error.count("\n") == 1
    assert main(["sql", str(tmp_path), "select * from nothing"]) == USAGE
    error = capsys.readouterr().err
    assert "Table with name nothing does not exist! (in DuckDB's SQL, over the tables events" in error
    assert main(["sql", str(tmp_path), "drop table events"]) == USAGE
    assert "only one query that begins with SELECT" in capsys.readouterr().err
    assert main(["sql", str(tmp_path), "select 1", "--master", "local"]) == USAGE
    assert "sql runs on DuckDB" in capsys.readouterr().err


def test_a_table_that_was_cut_off_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain(tmp_path, "a.jsonl", 2)
    assert main(["compact", str(tmp_path)]) == OK
    (table,) = (tmp_path / "_tables").glob("events/*/*/*.parquet")
    table.write_bytes(table.read_bytes()[:-20])
    capsys.readouterr()
    assert main(["sql", str(tmp_path), "select 1"]) == INTERNAL
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert table.name in error
    assert "no query was run" in error


def test_columns_are_as_wide_as_their_values() -> None:
    assert aligned(["a", "long"], [("value", None), (1, 2)]) == ["a      long", "value", "1      2"]
    assert aligned(["a"], []) == ["a"]
