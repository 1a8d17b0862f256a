"""The error of a failed job: one line, with the cause that Java names last, and what to do."""

import pytest

from tunnel.analysis.engines.failures import JobError, SetupError, failure_of

SPARK = """An error occurred while calling o61.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)
Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.io.FileNotFoundException: File file:/shared/a.jsonl.zst does not exist
\t... 17 more
"""


def test_a_file_that_a_worker_lacks_is_named() -> None:
    error = failure_of(RuntimeError(SPARK), "no report was written", "Spark")
    assert isinstance(error, SetupError)
    assert str(error).startswith(
        "Spark's job failed (FileNotFoundException: File file:/shared/a.jsonl.zst does not exist), and no report was "
        "written: a file that the job needs is not there for every process of Spark"
    )
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("java.io.IOException: No space left on device", "make room"),
        ("java.lang.OutOfMemoryError: Java heap space", "--memory 6g"),
        ("java.nio.file.AccessDeniedException: /shared/a", "give Spark's processes access"),
        ("java.lang.UnsatisfiedLinkError: /tmp/libzstd.so: failed to map", "set TMPDIR"),
    ],
)
def test_faults_of_the_machine_come_with_advice(cause: str, advice: str) -> None:
    error = failure_of(RuntimeError(f"Job aborted\nCaused by: {cause}\n"), "nothing was added", "Spark")
    assert isinstance(error, SetupError)
    assert advice in str(error)


def test_an_unknown_failure_says_how_to_see_more() -> None:
    error = failure_of(RuntimeError("\nfirst line\nsecond line"), "nothing was added", "Spark")
    assert isinstance(error, JobError)
    assert str(error).startswith("Spark's job failed (first line), and nothing was added: run the command again")
    assert "RuntimeError" in str(failure_of(RuntimeError(), "nothing was added", "Spark"))


def test_an_error_that_is_already_plain_stays_as_it_is() -> None:
    known = SetupError("plain")
    assert failure_of(known, "nothing was added", "Spark") is known
