"""Each event is in the tables once, whatever happened to the processes that added it; with Spark."""

import pytest

from tests.analysis.exactly_once import EVENTS, MOMENTS
from tests.analysis.spark_job import SparkFound

pytestmark = pytest.mark.timeout(1600)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_command_that_is_killed_loses_and_repeats_nothing(spark_found: SparkFound, moment: str) -> None:
    seen, after = spark_found.attempts.killed[moment]
    assert seen in (0, EVENTS)
    assert after == EVENTS


def test_data_without_a_record_is_not_read(spark_found: SparkFound) -> None:
    assert (
        spark_found.attempts.killed["while Spark writes"][0] == spark_found.attempts.killed["before the record"][0] == 0
    )


def test_a_worker_without_a_file_is_an_error_and_nothing_is_added(spark_found: SparkFound) -> None:
    error, seen, after = spark_found.attempts.failed["a worker lacks a file"]
    assert error.startswith("SetupError: Spark's job failed (")
    assert "and nothing was added to the tables in" in error
    assert "check that the driver and all workers see the traces and the tables under the same path" in error
    assert error.count("\n") == 0
    assert (seen, after) == (0, EVENTS)


def test_a_failed_task_is_an_error_and_nothing_is_added(spark_found: SparkFound) -> None:
    error, seen, after = spark_found.attempts.failed["a task fails"]
    assert error.startswith("JobError: Spark's job failed (")
    assert "nothing was added to the tables in" in error
    assert error.count("\n") == 0
    assert (seen, after) == (0, EVENTS)
