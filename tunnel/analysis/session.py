"""The Spark session, on this machine or on a cluster, with settings chosen by measurement."""

import os

from pyspark.sql import SparkSession

__all__ = ["make_session"]

# A percentile needs a sketch for each group. By default Spark starts to sort at 128 groups. With the groups in a hash
# map, the same query over 5 million rows takes half the time.
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
    # Spark would derive further filters from the queries, mostly that a key is not null. Keys hardly ever are, and to
    # derive the filters costs more than they save.
    "spark.sql.constraintPropagation.enabled": "false",
    # Otherwise each expression that is built asks Java four more questions, to name its line in an error.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}

# In one process, adaptive planning gains nothing: the shuffles are small, and to plan the next stage and to generate
# and compile its code again costs half a second each time.
_LOCAL_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}

# A short report is over before Java has compiled Spark well: most of its time goes into loading classes and into code
# that runs once. So Java does not check the bytecode of the jars that pip installed, and has no second compiler: that
# one makes code twice as fast, but takes thirty seconds of processor time. Each task costs 10 ms, even if it is empty.
_BRIEF_SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions "
    "-XX:-BytecodeVerificationRemote",
    "spark.sql.shuffle.partitions": "2",
}


def make_session(
    master: str = "",
    *,
    memory: str = "3g",
    brief: bool = False,
    ui: bool = False,
    show_log: bool = False,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """Return a session on `master`, by default on all cores of this machine; under spark-submit, on its master.

    `brief` means that there is little to do, so that a quick start matters more than fast code. `settings` override all
    other settings. `memory` applies only to a Spark on this machine.
    """
    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName("tunnel-traces")
    chosen = {**_SETTINGS, "spark.ui.enabled": str(ui).lower()}
    if master or not under_submit:
        builder = builder.master(master or "local[*]")
    if not under_submit and (master or "local").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # avoids a lookup of this machine's name
        chosen |= {**_LOCAL_SETTINGS, **(_BRIEF_SETTINGS if brief else {}), "spark.driver.memory": memory}
    temporary = os.environ.get("TMPDIR")
    if temporary:  # Java does not look at it, but Spark's native libraries need a directory that is not noexec
        options = chosen.get("spark.driver.extraJavaOptions", "")
        chosen["spark.driver.extraJavaOptions"] = f'{options} "-Djava.io.tmpdir={temporary}"'.strip()
    for name, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN" if show_log else "OFF")  # errors reach the command as exceptions
    return session
