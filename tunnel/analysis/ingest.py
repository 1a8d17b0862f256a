"""The step from trace files to Parquet tables: it adds each new file exactly once."""

import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tunnel.analysis.intake import Intake, take_in
from tunnel.analysis.schema import CORRUPT, events_schema

__all__ = ["NoTracesError", "compact", "read_events"]

EVENTS = "events"
_CHECKPOINT = "checkpoint"


class NoTracesError(Exception):
    """There are no traces to analyse."""


def compact(session: SparkSession, directory: Path, work: Path) -> Intake:
    """Add the new files of `directory` to the tables below `work`.

    It may be interrupted and called again; each file is still added only once. NoTracesError if `directory` has no
    traces and the tables have none from before.
    """
    if not directory.is_dir():
        raise NoTracesError(f"{directory} is not a directory: name the one that --trace wrote to")
    intake, staged = take_in(directory, work)
    if staged is not None:
        _append(session, staged, work)
        shutil.rmtree(staged)
    if not intake.files:
        raise NoTracesError(f"no traces in {directory}: run a command with --trace {directory} first")
    return intake


def _append(session: SparkSession, staged: Path, work: Path) -> None:
    lines = (
        session.readStream.schema(events_schema())
        .option("columnNameOfCorruptRecord", CORRUPT)
        .option("pathGlobFilter", "*.jsonl*")
        .option("maxFileAge", "36500d")  # a copied file may keep an old date
        .json(str(staged))
        .withColumn("source", F.substring(F.col("_metadata.file_name"), 1, 16))  # the digest of the file's content
    )
    query = (
        lines.writeStream.format("parquet")
        .option("path", str(work / EVENTS))
        .option("checkpointLocation", str(work / _CHECKPOINT))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def read_events(session: SparkSession, work: Path) -> DataFrame:
    """Return the events, with the default values that trace lines leave out."""
    path = work / EVENTS
    schema = events_schema().add("source", "string")
    if not path.exists():
        return session.createDataFrame([], schema)
    rows = session.read.schema(schema).parquet(str(path))
    texts = [field.name for field in schema if field.dataType.typeName() == "string" and field.name != CORRUPT]
    numbers = [field.name for field in schema if field.dataType.typeName() != "string" and field.name != "edge_bytes"]
    return rows.fillna("", texts).fillna(0, numbers).fillna(-1, ["edge_bytes"])
