"""One Spark for all: the job runs once, in a process of its own, whichever worker needs it first."""

import fcntl
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.analysis.job import Found

JOB_S = 1500  # a bound, on a machine where much else runs; alone it takes a twentieth


@pytest.fixture(scope="session")
def job_directory(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Where the job has left what it found."""
    base = tmp_path_factory.getbasetemp()
    directory = (base if worker_id == "master" else base.parent) / "analysis-job"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "found.json").exists():
            command = [sys.executable, "-m", "tests.analysis.job", str(directory)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_S)
            assert done.returncode == 0, done.stderr[-4000:]
    return directory


@pytest.fixture(scope="session")
def found(job_directory: Path) -> Found:
    """What the job found."""
    return msgspec.json.decode((job_directory / "found.json").read_bytes(), type=Found)
