"""The plan of a report: how often it reads the tables and moves rows; that it needs no Python, and collects little."""

import ast
from pathlib import Path

import pytest

import tunnel.analysis
from tests.analysis.plans import Query, executed, steps_of
from tests.analysis.spark_job import SparkFound

pytestmark = pytest.mark.timeout(1600)

SCANS_MAX = 12
SHUFFLES_MAX = 47
QUERIES_MAX = 15

PLAN = """== Physical Plan ==
* HashAggregate (7)
+- Exchange (6)
   +- * BroadcastHashJoin Inner BuildRight (5)
      :- InMemoryTableScan (1)
      :     +- InMemoryRelation (2)
      :           +- Exchange (9)
      :              +- Scan parquet  (8)
      +- BroadcastExchange (4)
         +- LocalTableScan (3)


(2) InMemoryRelation
Arguments: [stream#5L, t#6L], StorageLevel(disk, memory, deserialized, 1 replicas)

(1) InMemoryTableScan
"""


def test_a_plan_is_read_as_its_tree_shows_it() -> None:
    steps = {step.name: step for step in steps_of(PLAN)}
    assert steps["Scan parquet"].above[-1] == "Exchange"
    assert steps["Scan parquet"].cache.startswith("[stream, t]")
    assert steps["LocalTableScan"].cache == ""
    assert steps["LocalTableScan"].above == (
        "HashAggregate",
        "Exchange",
        "BroadcastHashJoin Inner BuildRight",
        "BroadcastExchange",
    )
    assert [step.is_bounded for step in steps.values()].count(False) == 1  # only the result itself has no bound


def test_a_cached_table_is_computed_once() -> None:
    steps = executed([Query("", PLAN), Query("", PLAN)])
    assert sum(step.is_scan for step in steps) == 1
    assert sum(step.is_shuffle for step in steps) == 3


def test_a_report_reads_the_tables_and_moves_rows_a_limited_number_of_times(spark_found: SparkFound) -> None:
    steps = executed(spark_found.queries)
    assert 0 < sum(step.is_scan for step in steps) <= SCANS_MAX
    assert 0 < sum(step.is_shuffle for step in steps) <= SHUFFLES_MAX
    assert len(spark_found.queries) <= QUERIES_MAX


def test_no_operator_needs_python(spark_found: SparkFound) -> None:
    assert not [step.name for step in executed(spark_found.queries) if step.needs_python]


def test_collected_results_do_not_grow_with_the_trace(spark_found: SparkFound) -> None:
    """Between the tables and each result is an aggregate or a limit."""
    steps = executed(spark_found.queries)
    leaves = [step for step in steps if not step.cache and (step.is_scan or step.name == "InMemoryTableScan")]
    assert leaves
    assert [step.above for step in leaves if not step.is_bounded] == []


def test_results_are_collected_in_few_places() -> None:
    """A query in another module would not be in the list that these tests read."""
    places = {
        path.stem
        for path in Path(tunnel.analysis.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"collect", "take", "toLocalIterator", "toPandas"}
    }
    assert places == {"spark"}
