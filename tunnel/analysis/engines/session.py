"""The Spark session, on this machine or on a cluster, with settings chosen by measurement."""

import os
import re
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
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
    "spark.sql.broadcastTimeout": "3600",  # on a busy machine, a small table may take more than the default of 300 s
    "spark.ui.showConsoleProgress": "false",
    # Spark would derive further filters from the queries, mostly that a key is not null. Keys hardly ever are, and to
    # derive the filters costs more than they save.
    "spark.sql.constraintPropagation.enabled": "false",
    # Otherwise each expression that is built asks Java four more questions, to name its line in an error.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}

# In one process, adaptive planning gains nothing: the shuffles are small, and to plan the next stage and to generate
# and compile its code again costs half a second each time. Each sort, and each small table that is sent to all tasks,
# takes a page at least, by default one of 64 MB in 3 GB: with smaller ones a report takes 0.9 to 1.1 instead of 3.3 GB.
# A task can have 8,192 pages.
_LOCAL_SETTINGS = {
    "spark.buffer.pageSize": "8m",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}

# A short report is over before Java has compiled Spark well: most of its time goes into loading classes and into code
# that runs once. So Java does not check the bytecode of the jars that pip installed, and has no second compiler: that
# one makes code twice as fast, but takes thirty seconds of processor time. Each task costs 10 ms, even if it is empty.
# With room for young objects and for classes from the beginning, Java collects garbage a few times only: otherwise it
# does at each step by which they grow.
_BRIEF_SETTINGS = {
    "spark.buffer.pageSize": "1m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:NewSize=300m -XX:MetaspaceSize=256m -XX:TieredStopAtLevel=1 "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    "spark.sql.shuffle.partitions": "2",
}

# Java asks the jars for each class one after the other, in the order in which they lie in their directory. So those
# that hold most of the 24,000 classes come first: this took a twelfth off the start.
_JARS_FIRST = ("spark-catalyst", "spark-sql", "spark-core", "scala-library", "spark-common-utils", "hadoop-client-api")
_VERSION = re.compile(r"(_2\.\d+)?-\d[^/]*\.jar$")


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
        chosen["spark.driver.extraClassPath"] = _jars_first()
    temporary = os.environ.get("TMPDIR")
    if temporary:  # Java does not look at it, but Spark's native libraries need a directory that is not noexec
        options = chosen.get("spark.driver.extraJavaOptions", "")
        chosen["spark.driver.extraJavaOptions"] = f'{options} "-Djava.io.tmpdir={temporary}"'.strip()
    if under_submit:  # what was given with --conf, or in spark-defaults.conf, decides
        SparkContext._ensure_initialized()  # noqa: SLF001 - without Java, a SparkConf knows nothing of them
        given = {name for name, _ in SparkConf().getAll()}
        chosen = {name: value for name, value in chosen.items() if name not in given}
    for name, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN" if show_log else "OFF")  # errors reach the command as exceptions
    return session


def _jars_first() -> str:
    """Return the class path of the jars that Java is to ask first."""
    found = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars").glob("*.jar")
    jars = {_VERSION.sub("", jar.name): str(jar) for jar in found}
    return os.pathsep.join(jars[name] for name in _JARS_FIRST if name in jars)
