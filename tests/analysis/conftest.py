"""Two jobs that tests share, `found` and `spark_found`: the first worker that needs one runs it in a process."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.analysis.job import Found
from tests.analysis.spark_job import SparkFound

JOB_S = 1500  # a bound for a busy machine; where nothing else runs, a job takes a twentieth of this time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that wait for Spark in one worker (with --dist loadgroup), so that the other workers go on."""
    for item in items:
        if isinstance(item, pytest.Function) and "spark_directory" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("spark"))


def _done(base: Path, worker_id: str, module: str, *arguments: str) -> Path:
    """Run a job that no other worker has run, and return its directory."""
    directory = (base if worker_id == "master" else base.parent) / module
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "found.json").exists():
            command = [sys.executable, "-m", module, *arguments, str(directory)]
            # executors need no Python: a job in which one starts Python fails
            environment = {**os.environ, "PYSPARK_PYTHON": "/nonexistent"}
            done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_S, env=environment)
            assert done.returncode == 0, done.stderr[-4000:]
    return directory


@pytest.fixture(scope="session")
def job_directory(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The directory with the scenarios and the results of DuckDB."""
    return _done(tmp_path_factory.getbasetemp(), worker_id, "tests.analysis.job")


@pytest.fixture(scope="session")
def found(job_directory: Path) -> Found:
    """The results of DuckDB."""
    return msgspec.json.decode((job_directory / "found.json").read_bytes(), type=Found)


@pytest.fixture(scope="session")
def spark_directory(job_directory: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The directory with the results of Spark, and the traces of the cases."""
    return _done(tmp_path_factory.getbasetemp(), worker_id, "tests.analysis.spark_job", str(job_directory))


@pytest.fixture(scope="session")
def spark_found(spark_directory: Path) -> SparkFound:
    """The results of Spark, and of both engines for the cases."""
    return msgspec.json.decode((spark_directory / "found.json").read_bytes(), type=SparkFound)
