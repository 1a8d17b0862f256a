"""Spark queries about the times for which a writer has no records; `holes` has the part that needs no Spark."""

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tunnel.analysis.holes import SLACK_US

__all__ = ["holes_of", "table_of"]


def holes_of(events: DataFrame, writers: list[str]) -> DataFrame:
    """Return the holes between records of these writers, with the times at which each begins and ends.

    A hole lies between two neighbouring records of one writer whose numbers show that others are missing between them.
    A writer that dropped records reports it afterwards (`trace_dropped`). So the dropped records lie between that
    report and the record before it. Holes that begin in the same interval of SLACK_US are one row: `holes.merged` would
    join them anyway.
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
        .groupBy("writer", F.floor(F.col("begin") / SLACK_US).alias("cell"))
        .agg(F.min("begin").alias("begin"), F.max("end").alias("end"))
        .drop("cell")
    )


def table_of(session: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """Return the rows of `holes.by_writer` as a table. Its column `writer` is the hash of the writer's name.

    The rows travel as one text, because Spark would start Python on its workers to read a table that is made of
    Python's values.
    """
    shape = "array<struct<writer: string, until_us: bigint, holes: array<struct<begin: bigint, end: bigint>>>>"
    table = session.sql(f"select inline(from_json(:rows, '{shape}'))", args={"rows": json.dumps(rows)})
    return table.withColumn("writer", F.xxhash64("writer"))
