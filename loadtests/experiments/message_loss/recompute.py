"""Computes the report again with Spark, from the records alone; it must agree with the one that the run printed."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from loadtests.experiments.message_loss.records import Stage
from loadtests.experiments.message_loss.report import Gap, Report
from loadtests.harness.experiment import command

__all__ = ["main", "recompute", "records_of"]

# The columns of the trace record that the experiment fills. A line omits a field that has its default; the column is
# null then.
SCHEMA = StructType(
    [
        StructField("time_us", LongType()),
        StructField("node", StringType()),
        StructField("event", StringType()),
        StructField("sequence", LongType()),
        StructField("size_bytes", IntegerType()),
        StructField("cause", StringType()),
    ]
)


def records_of(spark: SparkSession, directory: Path) -> DataFrame:
    """Read all records of a run."""
    return spark.read.schema(SCHEMA).json(str(directory))


def recompute(records: DataFrame, mode: str, broker: str) -> Report:
    """Compute the report of a run, except the duration of the outage and the times of its signs.

    It takes two passes over the records: one counts messages, one finds gaps.
    """
    counted = records.groupBy("node", "cause", "event").agg(
        F.count("*").alias("n"), F.max("size_bytes").alias("size"), F.sum("size_bytes").alias("bytes")
    )
    rows = counted.collect()
    sent = {(row["cause"], row["event"]): (row["n"], row["bytes"]) for row in rows if row["event"] != Stage.RECEIVED}
    receivers = {row["node"]: row["n"] for row in rows if row["event"] == Stage.RECEIVED}
    message_bytes = max((row["size"] for row in rows if row["event"] == Stage.PUBLISHED), default=0)
    published = sum(count for (_, stage), (count, _) in sent.items() if stage == Stage.PUBLISHED)
    gaps, different = _gaps(records.where(F.col("event") == Stage.RECEIVED), published)
    return Report(
        mode=mode,
        broker=broker,
        message_bytes=message_bytes,
        received=[receivers[node] for node in sorted(receivers)],
        twice=sum(receivers.values()) - different,
        gaps=gaps,
        published=published,
        counts={phase: _counts(sent, phase) for phase in ("before", "after")},
    )


def _gaps(received: DataFrame, published: int) -> tuple[list[Gap], int]:
    """Return the gaps, and the number of different ids received."""
    end = received.sparkSession.range(1).select(F.lit(published + 1).alias("sequence"))
    order = Window.orderBy("sequence")
    ids = received.select("sequence").distinct().unionByName(end)
    placed = ids.select(
        "sequence",
        (F.lag("sequence", 1, 0).over(order) + 1).alias("expected"),
        F.row_number().over(order).alias("place"),
    )
    rows = placed.where((F.col("sequence") > F.col("expected")) | (F.col("sequence") > published)).collect()
    found = sorted((row["expected"], row["sequence"]) for row in rows)
    return [Gap(*pair) for pair in found if pair[0] != pair[1]], max(row["place"] for row in rows) - 1


def _counts(sent: dict[tuple[str, str], tuple[int, int]], phase: str) -> dict[str, tuple[int, int]]:
    stages = (("published", Stage.PUBLISHED), ("buffered", Stage.BUFFERED), ("written", Stage.WRITTEN))
    return {name: sent.get((phase, stage), (0, 0)) for name, stage in stages}


def session() -> SparkSession:
    """Start a small Spark session on this machine."""
    builder: Any = SparkSession.builder
    quiet = builder.master("local[2]").config("spark.ui.enabled", "false")
    made: SparkSession = quiet.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Recompute and print the report of a directory."""
    parser = command(
        "experiments.message_loss.recompute",
        "Compute the report of the message-loss experiment again, from its records, with Spark.",
        "build/message-loss/raw-builtin",
    )
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args(argv)
    if not list(arguments.directory.glob("*.jsonl")):
        print(
            f"no records in {arguments.directory}: run python -m loadtests.experiments.message_loss first",
            file=sys.stderr,
        )
        return 2
    mode, _, broker = arguments.directory.resolve().name.partition("-")
    spark = session()
    try:
        report = recompute(records_of(spark, arguments.directory), mode, broker)
    finally:
        spark.stop()
    if arguments.json:
        print(json.dumps({"received": report.received, "twice": report.twice, "lost": report.lost}))
    else:
        print("\n".join(report.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
