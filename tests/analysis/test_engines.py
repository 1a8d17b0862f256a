"""Both engines publish the same values, to the last digit, for all scenarios."""

from __future__ import annotations

import msgspec
import pytest

from tests.analysis.engines import differences
from tests.analysis.job import SCENARIOS
from tests.analysis.spark_job import CASES, SparkFound

pytestmark = pytest.mark.timeout(1600)


@pytest.mark.parametrize("scenario", [*SCENARIOS, CASES])
def test_both_engines_publish_the_same_values(spark_found: SparkFound, scenario: str) -> None:
    spark, duckdb = (msgspec.to_builtins(by_engine[scenario]) for by_engine in (spark_found.spark, spark_found.duckdb))
    assert spark.pop("engine").startswith("Spark ")
    assert duckdb.pop("engine").startswith("DuckDB ")
    assert differences(spark, duckdb) == []


def test_a_report_over_more_files_has_the_values_of_a_first_one_on_spark_too(spark_found: SparkFound) -> None:
    """Its tables of streams are stored, and most of them are taken over."""
    grown, first = map(msgspec.to_builtins, spark_found.grown)
    assert differences(grown, first) == []


def test_spark_reads_the_tables_that_duckdb_made(spark_found: SparkFound) -> None:
    by_spark, by_duckdb = spark_found.shared
    assert by_spark == by_duckdb > 0
