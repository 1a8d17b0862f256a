"""Executors need no Python, because no code of the analysis makes Spark start it. The job of these tests gives its
executors none."""

import ast
from pathlib import Path

import pytest

import tunnel.analysis
from tests.analysis.spark_job import SparkFound

SOURCES = sorted(Path(tunnel.analysis.__file__).parent.glob("*.py"))
# createDataFrame from a list of Python's values serialises them with Python on the executors, even an empty list
FORBIDDEN = {
    "createDataFrame", "rdd", "parallelize", "udf", "pandas_udf", "udtf", "mapInPandas", "mapInArrow", "applyInPandas",
    "applyInArrow", "foreach", "foreachBatch", "foreachPartition", "toPandas", "toArrow", "toLocalIterator",
}  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_code_starts_python_on_executors(path: Path) -> None:
    used = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not used & FORBIDDEN


@pytest.mark.timeout(1600)
def test_the_job_runs_without_a_python_for_executors(spark_found: SparkFound) -> None:
    assert spark_found.python == "/nonexistent"
    assert spark_found.spark["truth"].retransmissions[0]["relay"]  # the table of relays came from the driver
