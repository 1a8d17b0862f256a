"""The files of SQL: both engines read them, their first lines say what they need, and their numbers are ours."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import sqlglot
from sqlglot import exp

from tunnel.analysis import words
from tunnel.analysis.engines import duck
from tunnel.analysis.engines.queries import query
from tunnel.analysis.engines.schema import COLUMNS, STORED
from tunnel.analysis.results import clocks, limits
from tunnel.analysis.results.result import ACKED, CAUSES, RECEIVED, SENT, TRANSITIONS
from tunnel.core.timers import Timer
from tunnel.traces.record import TraceCause, TraceEvent, TraceReason
from tunnel.wire import IN_STREAM, PacketType

FILES = sorted(path.name.removesuffix(".sql") for path in (files("tunnel.analysis") / "sql").iterdir())
SHIMS = {"struct", "xxhash64", "in_hole", "last_known"}
IN_BOTH = {"bit_count"}  # functions of both engines that sqlglot does not know


def text_of(name: str) -> str:
    return (files("tunnel.analysis") / "sql" / f"{name}.sql").read_text()


def parsed(name: str, dialect: str = "duckdb") -> exp.Query:
    (statement,) = sqlglot.parse(text_of(name), dialect=dialect)
    assert isinstance(statement, exp.Query)
    return statement


def compared(name: str, column: str) -> set[str]:
    """Return the texts with which a query compares a column."""
    found = set()
    for node in parsed(name).walk():
        sides = [node.this, *node.expressions] if isinstance(node, exp.In) else list(node.args.values())
        if isinstance(node, exp.EQ | exp.NEQ | exp.In) and getattr(node.this, "name", "") == column:
            found |= {side.name for side in sides if isinstance(side, exp.Literal) and side.is_string}
        if isinstance(node, exp.Case) and getattr(node.this, "name", "") == column:
            found |= {branch.this.name for branch in node.args["ifs"]}
    return found - {""}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("dialect", ["duckdb", "spark"])
def test_a_file_is_one_query_that_an_engine_reads(name: str, dialect: str) -> None:
    statement = parsed(name, dialect)
    unknown = {node.name.lower() for node in statement.find_all(exp.Anonymous) if not node.find_ancestor(exp.Hint)}
    assert unknown <= SHIMS | IN_BOTH


@pytest.mark.parametrize("name", FILES)
def test_the_first_lines_name_what_a_query_reads_and_its_parameters(name: str) -> None:
    text = text_of(name)
    head = "".join(line.removeprefix("--") for line in re.findall(r"^--.*\n", text, re.MULTILINE))
    statement = parsed(name)
    defined = {cte.alias for cte in statement.find_all(exp.CTE)}
    tables = {table.name for table in statement.find_all(exp.Table)} - defined
    found = re.search(r" Reads: (.*?)\.(?: Parameters?: (.*))?\n", head)
    assert found is not None
    assert tables == set(re.findall(r"(\w+)", re.sub(r"\(.*?\)", "", found[1])))
    parameters = {node.name for node in statement.find_all(exp.Placeholder)}
    assert parameters == set(re.findall(r"(\w+)", re.sub(r"\(.*?\)", "", found[2] or "")))


@pytest.mark.parametrize("name", FILES)
def test_events_causes_and_reasons_are_those_of_the_record(name: str) -> None:
    assert compared(name, "event") <= {event.value for event in TraceEvent}
    assert compared(name, "cause") <= {cause.value for cause in TraceCause}
    assert compared(name, "reason") <= {reason.value for reason in TraceReason}


@pytest.mark.parametrize("name", FILES)
def test_packet_types_have_the_numbers_of_the_protocol(name: str) -> None:
    sets = {
        frozenset(int(each.name) for each in node.expressions)
        for node in parsed(name).find_all(exp.In)
        if getattr(node.this, "name", "") == "packet_type"
    }
    assert sets <= {
        frozenset(IN_STREAM),
        frozenset({PacketType.ACCEPTED, PacketType.REJECTED}),
        frozenset({PacketType.CLOSE, PacketType.FINISH}),
    }
    single = {
        int(node.expression.name)
        for node in parsed(name).find_all(exp.EQ, exp.NEQ)
        if getattr(node.this, "name", "") == "packet_type"
    }
    assert single <= {PacketType.DATA, PacketType.CONNECT}


def test_the_events_have_the_columns_of_a_record() -> None:
    names = [column.alias_or_name for column in parsed("records").selects]
    assert set(names) == {*STORED, "is_bad"}
    assert set(COLUMNS) - {column.alias_or_name for column in parsed("events").selects} == {
        "version", "lane", "exchange", "serial", "writer", "wall_us"
    }  # fmt: skip


def test_causes_of_repeats_have_the_numbers_of_the_list() -> None:
    (case,) = [node for node in parsed("packets").find_all(exp.Case) if getattr(node.this, "name", "") == "cause"]
    numbers = {branch.this.name: int(branch.args["true"].name) for branch in case.args["ifs"]}
    assert numbers == {cause: number for number, cause in enumerate(CAUSES) if number}


def test_kinds_of_events_have_the_numbers_of_the_graphs() -> None:
    cases = [node for node in parsed("flow").find_all(exp.Case) if getattr(node.this, "name", "") == "event"]
    numbers = {branch.this.name: int(branch.args["true"].name) for branch in cases[0].args["ifs"]}
    assert (numbers["packet_sent"], numbers["packet_received"], numbers["packets_acked"]) == (SENT, RECEIVED, ACKED)


def test_limits_stalls_and_transitions_are_those_that_python_knows() -> None:
    totals = {column.alias_or_name for column in parsed("totals").selects}
    assert totals >= {*limits.LIMITS, "granted_most"}
    whys = [column.this for column in parsed("stalls").selects if column.alias_or_name == "why"]
    branches = [branch.args["true"].name for branch in whys[0].args["ifs"]] + [whys[0].args["default"].name]
    assert set(branches) == set(words.STALLS)
    assert {column.alias_or_name for column in parsed("totals").selects} >= set(TRANSITIONS)
    assert {column.alias_or_name for column in parsed("delays").selects} == {"begin_writer", "end_writer", "us"}
    assert clocks.clocks_of({"a": None}, [])["a"].known_by == "reference"


def test_all_timers_that_fire_together_are_counted() -> None:
    assert len(Timer) <= len(re.findall(r"select \d+", text_of("details")))


def test_parameters_are_whole_numbers_and_all_are_used() -> None:
    assert "limit 7" in query("worst", most=7)
    with pytest.raises(KeyError):
        query("worst")
    with pytest.raises(TypeError, match="no parameter other"):
        query("worst", most=7, other=1)
    with pytest.raises(ValueError, match="invalid literal"):
        query("worst", most="7; drop table x")  # type: ignore[arg-type]


def test_only_the_functions_that_duckdb_lacks_are_defined_for_it() -> None:
    defined = {found[1] for text in duck._MACROS if (found := re.match(r"create macro (\w+)", text))}
    assert defined | {"last_known"} == SHIMS
