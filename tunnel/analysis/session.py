"""The Spark session: settings that were measured, on this machine or on a cluster."""

import os
import sys

from pyspark.sql import SparkSession

__all__ = ["make_session"]

# A percentile needs a sketch for each group. Spark's default sorts as soon as there are 128 groups; kept in a hash map
# the same query over 5 million rows takes half the time.
_GROUPS_IN_MEMORY = "100000"

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": _GROUPS_IN_MEMORY,
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.compression.codec.zstd.level": "1",
    "spark.sql.inMemoryColumnarStorage.compressed": "true",
    "spark.sql.autoBroadcastJoinThreshold": "64m",
    "spark.ui.showConsoleProgress": "false",
    # the state of streaming is a list of file names
    "spark.sql.streaming.minBatchesToRetain": "2",
}

# In one process there is nothing to gain from measuring every stage before the next is planned: the shuffles are small,
# and planning, generating and compiling code again costs half a second each time.
_LOCAL_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}

# The second compiler of Java makes code twice as fast, and needs thirty seconds of processor time for it: at a million
# events that was 87 CPU seconds with it and 75 without, at five million it pays.
_BRIEF = {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"}


def make_session(
    master: str = "",
    *,
    memory: str = "3g",
    brief: bool = False,
    ui: bool = False,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """A session on `master`, by default on all cores of this machine; within spark-submit on the master that it named.
    `brief` says that there is little to do, so that a quick start counts for more than fast code. `settings` come last.
    """
    # workers run the same Python, and nothing looks up the name of this machine
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName("tunnel-traces")
    chosen = {**_SETTINGS, "spark.ui.enabled": str(ui).lower()}
    if master or not under_submit:
        builder = builder.master(master or "local[*]")
    if not under_submit and (master or "local").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen |= {**_LOCAL_SETTINGS, **(_BRIEF if brief else {}), "spark.driver.memory": memory}
    for name, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
