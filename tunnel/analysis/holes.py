"""The times for which a writer has no records: before its first, after its last, and where records are missing.

Records go missing when the writer's queue is full or its disk does not take them, and when a part of a file is damaged.
Events of such a time are unknown, and must not be taken for a loss or a silence of the network.
"""

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

__all__ = ["holes_of", "merged", "table_of"]

_EVER_US = 1 << 60
_SLACK_US = 100_000  # records of several threads are in the order of their times only roughly

Rows = list[dict[str, Any]]


def holes_of(events: DataFrame, writers: list[str]) -> DataFrame:
    """Return the time between two neighbouring records of one of these writers, wherever numbers are missing there.

    A writer that dropped records reports it afterwards (`trace_dropped`). So these records lie between the report and
    the record before it. Holes that begin in the same interval of _SLACK_US are one row: `merged` joins them anyway.
    """
    order = Window.partitionBy("writer").orderBy("number")
    numbered = events.where((F.col("version") == 1) & (F.col("number") > 0) & F.col("writer").isin(writers))
    return (
        numbered.select(
            "writer",
            "number",
            F.col("time_us").alias("t"),
            F.lag("number").over(order).alias("before"),
            F.lag("time_us").over(order).alias("t_before"),
        )
        .where("number - before > 1")
        .select("writer", F.least("t_before", "t").alias("begin"), F.greatest("t_before", "t").alias("end"))
        .groupBy("writer", F.floor(F.col("begin") / _SLACK_US).alias("cell"))
        .agg(F.min("begin").alias("begin"), F.max("end").alias("end"))
        .drop("cell")
    )


def merged(rows: Rows) -> dict[str, list[tuple[int, int]]]:
    """Return the holes of each writer in order, each widened by a slack; those that then overlap are joined."""
    found: dict[str, list[tuple[int, int]]] = {}
    for row in sorted(rows, key=lambda row: (row["writer"], row["begin"])):
        begin, end = row["begin"] - _SLACK_US, row["end"] + _SLACK_US
        holes = found.setdefault(row["writer"], [])
        if holes and begin <= holes[-1][1]:
            holes[-1] = (holes[-1][0], max(end, holes[-1][1]))
        else:
            holes.append((begin, end))
    return found


def table_of(session: SparkSession, files: Rows, inner: dict[str, list[tuple[int, int]]]) -> DataFrame:
    """Return one row for each writer: the hash of its name, its holes, and the time of its last record (`until_us`).

    `files` are the rows of counts.file_health. The rows travel as one text, because Spark would start Python on its
    workers to read a table that is made of Python's values.
    """
    spans: dict[str, tuple[int, int]] = {}
    for row in files:
        if row["begin_us"] is not None:
            begin, end = spans.get(row["writer"], (row["begin_us"], row["end_us"]))
            spans[row["writer"]] = (min(begin, row["begin_us"]), max(end, row["end_us"]))
    rows = [
        {
            "writer": writer,
            "until_us": end,
            "holes": [{"begin": first, "end": last} for first, last in [(-_EVER_US, begin), *inner.get(writer, [])]],
        }
        for writer, (begin, end) in spans.items()
    ]
    shape = "array<struct<writer: string, until_us: bigint, holes: array<struct<begin: bigint, end: bigint>>>>"
    table = session.sql(f"select inline(from_json(:rows, '{shape}'))", args={"rows": json.dumps(rows)})
    return table.withColumn("writer", F.xxhash64("writer"))
