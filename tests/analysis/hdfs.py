"""HDFS in one process: the mini cluster of Hadoop's own tests, in the version of Hadoop that Spark brings.

`python -m tests.analysis.hdfs` fetches it into build/hdfs, with the Ivy of the pyspark package and Ivy's own settings
(`make hdfs-deps`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.analysis.settings import SHORT_LIVED

__all__ = ["is_fetched", "main", "mini_cluster"]

START_S = 600.0  # a bound for starting a Java on a busy machine
FETCH_S = 600.0
_FOLDER = Path(__file__).parents[2] / "build" / "hdfs"
_JARS = Path(pyspark.__file__).parent / "jars"
_JUNIT = ("org.junit.jupiter", "junit-jupiter-api", "5.13.4")  # the cluster needs it, although it runs no test


def _wanted() -> list[tuple[str, str, str]]:
    (api,) = _JARS.glob("hadoop-client-api-*.jar")
    version = api.stem.removeprefix("hadoop-client-api-")
    return [("org.apache.hadoop", "hadoop-client-minicluster", version), _JUNIT]


def _stamp() -> Path:
    return _FOLDER / "-".join(["fetched", *(version for _, _, version in _wanted())])


def is_fetched() -> bool:
    """Whether the cluster of Spark's Hadoop version is there."""
    return _stamp().exists()


def main() -> int:
    """Fetch the cluster, unless it is there."""
    if is_fetched():
        return 0
    _FOLDER.mkdir(parents=True, exist_ok=True)
    (ivy,) = _JARS.glob("ivy-*.jar")
    for module in _wanted():
        target = ["-retrieve", f"{_FOLDER}/[artifact].[ext]", "-cache", str(_FOLDER / "cache"), "-types", "jar"]
        # all that the cluster needs of Hadoop is in one file
        transitive = ["-notransitive"] if module != _JUNIT else ["-confs", "default"]
        command = ["java", "-jar", str(ivy), "-error", "-dependency", *module, *transitive, *target]
        subprocess.run(command, check=True, timeout=FETCH_S, stdout=subprocess.DEVNULL)
    _stamp().touch()
    return 0


@contextmanager
def mini_cluster(directory: Path) -> Iterator[str]:
    """Run a name node and a data node on loopback; yield the URI of their file system."""
    details = directory / "details.json"
    options = ["-datanodes", "1", "-format", "-writeDetails", str(details), "-D", "dfs.replication=1"]
    java = ["java", "-Xmx300m", *SHORT_LIVED.split(), f"-Dtest.build.data={directory / 'data'}"]
    command = [*java, "-cp", f"{_FOLDER}/*:{_JARS}/*", "org.apache.hadoop.test.MiniDFSClusterManager", *options]
    with (directory / "cluster.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
    try:
        deadline = time.monotonic() + START_S
        while not (details.exists() and details.read_text().endswith("}")):
            assert process.poll() is None, (directory / "cluster.log").read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, (directory / "cluster.log").read_text(errors="replace")[-3000:]
            time.sleep(0.1)
        yield f"hdfs://127.0.0.1:{json.loads(details.read_text())['namenode_port']}"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
