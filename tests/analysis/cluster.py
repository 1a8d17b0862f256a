"""A Spark cluster of our own on loopback, started with `spark-class` of the package that pip installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.analysis.settings import SHORT_LIVED

__all__ = ["CODEC", "WORKERS", "standalone", "submit"]

WORKERS = 2
CODEC = "snappy"  # of Parquet files: it is given to spark-submit
START_S = 600.0  # a bound for starting a Java on a busy machine


def _environment() -> dict[str, str]:
    home = str(Path(pyspark.__file__).parent)
    small = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return {
        **os.environ,
        **small,
        "SPARK_HOME": home,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": "/nonexistent",
    }


def _daemon(directory: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [str(program), f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(),
        )


def _await(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """Wait until the pattern occurs in the log; return its group."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)
    raise AssertionError(f"the log does not contain {pattern}: {log.read_text(errors='replace')[-3000:]}")


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Run a master and two workers of one core each; yields the master's URL."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        master = _daemon(
            directory, "master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        processes.append(master)
        url = _await(directory / "master.log", r"(spark://127\.0\.0\.1:\d+)", master)
        for number in range(WORKERS):
            options = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "600m")
            work = ("--work-dir", str(directory / f"work{number}"))
            processes.append(_daemon(directory, f"worker{number}", "worker.Worker", *options, *work, url))
        for number, worker in enumerate(processes[1:]):
            _await(directory / f"worker{number}.log", r"Successfully registered with master (\S+)", worker)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def submit(master: str, traces: Path, output: Path) -> subprocess.CompletedProcess[str]:
    """Run our command with spark-submit; Spark's event log in `output` shows which executor ran which task."""
    import tunnel.analysis

    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(output),
        "spark.eventLog.compress": "false",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Wait for both workers: a job as small as this could end before the second one has registered.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "500s",
        "spark.cores.max": str(WORKERS),
        "spark.locality.wait": "0s",
        "spark.sql.parquet.compression.codec": CODEC,
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    main = Path(tunnel.analysis.__file__).parent / "__main__.py"
    command = [str(program), "--master", master, *options, str(main), "compact", str(traces), "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, env=_environment())
