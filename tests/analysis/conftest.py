"""One Spark job for all tests that use `found`: the first worker that needs it runs it in a process of its own."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.analysis.job import Found

JOB_S = 1500  # a bound for a busy machine; where nothing else runs, the job takes a twentieth of this time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that wait for the job in one worker (with --dist loadgroup), so that the other workers go on."""
    for item in items:
        if isinstance(item, pytest.Function) and "job_directory" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def job_directory(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The directory with the results of the job."""
    base = tmp_path_factory.getbasetemp()
    directory = (base if worker_id == "master" else base.parent) / "analysis-job"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "found.json").exists():
            command = [sys.executable, "-m", "tests.analysis.job", str(directory)]
            # executors need no Python: a job in which one starts Python fails
            environment = {**os.environ, "PYSPARK_PYTHON": "/nonexistent"}
            done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_S, env=environment)
            assert done.returncode == 0, done.stderr[-4000:]
    return directory


@pytest.fixture(scope="session")
def found(job_directory: Path) -> Found:
    """The results of the job."""
    return msgspec.json.decode((job_directory / "found.json").read_bytes(), type=Found)
