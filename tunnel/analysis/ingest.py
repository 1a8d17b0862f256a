"""From trace files to columns: new files are added to Parquet tables, each exactly once."""

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
    """There is nothing to analyse."""


def compact(session: SparkSession, directory: Path, work: Path) -> Intake:
    """Add what is new in `directory` to the tables below `work`. May be interrupted and called again: a file is added
    once. NoTracesError when there is nothing, and never was."""
    if not directory.is_dir():
        raise NoTracesError(f"{directory} is no directory: name the one that --trace wrote to")
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
        .option("maxFileAge", "36500d")  # a file that was copied here keeps its old date
        .json(str(staged))
        .withColumn("source", F.substring(F.col("_metadata.file_name"), 1, 16))  # the digest of the file
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
    """The events, with the defaults that lines leave out."""
    path = work / EVENTS
    schema = events_schema().add("source", "string")
    if not path.exists():
        return session.createDataFrame([], schema)
    rows = session.read.schema(schema).parquet(str(path))
    texts = [field.name for field in schema if field.dataType.typeName() == "string" and field.name != CORRUPT]
    numbers = [field.name for field in schema if field.dataType.typeName() != "string" and field.name != "edge_bytes"]
    return rows.fillna("", texts).fillna(0, numbers).fillna(-1, ["edge_bytes"])
