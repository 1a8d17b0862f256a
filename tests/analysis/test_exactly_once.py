"""Each event is in the tables once, whatever happened to the processes that added it; with Spark."""

import pytest

from tests.analysis.exactly_once import EVENTS, MOMENTS
from tests.analysis.job import Found

pytestmark = pytest.mark.timeout(1600)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_command_that_is_killed_loses_and_repeats_nothing(found: Found, moment: str) -> None:
    seen, after = found.attempts.killed[moment]
    assert seen in (0, EVENTS)
    assert after == EVENTS


def test_data_without_a_record_is_not_read(found: Found) -> None:
    assert found.attempts.killed["while Spark writes"][0] == found.attempts.killed["before the record"][0] == 0


def test_a_worker_without_a_file_is_an_error_and_nothing_is_added(found: Found) -> None:
    error, seen, after = found.attempts.failed["a worker lacks a file"]
    assert error.startswith("SetupError: Spark's job failed (")
    assert "and nothing was added to the tables in" in error
    assert "check that the driver and all workers see the traces and the tables under the same path" in error
    assert error.count("\n") == 0
    assert (seen, after) == (0, EVENTS)


def test_a_failed_task_is_an_error_and_nothing_is_added(found: Found) -> None:
    error, seen, after = found.attempts.failed["a task fails"]
    assert error.startswith("JobError: Spark's job failed (")
    assert "nothing was added to the tables in" in error
    assert error.count("\n") == 0
    assert (seen, after) == (0, EVENTS)
