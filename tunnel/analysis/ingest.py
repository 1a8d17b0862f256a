"""The step from trace files to Parquet tables: it adds each event exactly once, and either all of a call or nothing."""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tunnel.analysis.failures import NoTracesError, SetupError, failure_of
from tunnel.analysis.intake import Staged, add_new
from tunnel.analysis.ledger import Intake, Ledger
from tunnel.analysis.schema import CORRUPT, events_schema

__all__ = ["compact", "read_events"]


def compact(
    session: SparkSession, directory: Path, ledger: Ledger, progress: Callable[[str], None] = lambda text: None
) -> Intake:
    """Add the new files of `directory` to the tables of the ledger.

    It may be interrupted and called again. NoTracesError if `directory` has no traces and the tables have none from
    before; SetupError or JobError if Spark could not add them: nothing is added then.
    """
    if not directory.is_dir():
        raise NoTracesError(f"{directory} is not a directory: name the one that --trace wrote to")

    def append(staged: Staged, data: Path) -> None:
        progress(f"adding {staged.files} trace files to the tables")
        _write(session, staged, data)

    progress("reading the traces")
    intake = add_new(directory, ledger, append)
    if not intake.files:
        raise NoTracesError(f"no traces in {directory}: run a command with --trace {directory} first")
    return intake


def _write(session: SparkSession, staged: Staged, data: Path) -> None:
    """Write the staged lines to a new folder, and check that all of them are there."""
    try:
        lines = (
            session.read.schema(events_schema())
            .option("columnNameOfCorruptRecord", CORRUPT)
            .option("lineSep", "\n")
            .json(str(staged.folder))
            .withColumn("source", F.substring(F.col("_metadata.file_name"), 1, 16))
        )
        lines.write.mode("errorifexists").parquet(str(data))
        # where workers have a file system of their own, this finds nothing: they wrote to theirs
        rows = session.read.schema(_schema_of_tables()).parquet(str(data)).count() if data.is_dir() else 0
    except Exception as error:  # the classes differ between versions of Spark, and some are of Java
        raise failure_of(error, f"nothing was added to the tables in {data.parent.parent}") from error
    if rows != staged.rows:
        raise SetupError(
            f"Spark wrote {rows} of {staged.rows} events, so nothing was added to the tables in {data.parent.parent}: "
            "check that the driver and all workers have the traces and the tables under the same path, and run the "
            "command again"
        )


def _schema_of_tables() -> StructType:
    return events_schema().add("source", "string")


def read_events(session: SparkSession, ledger: Ledger) -> DataFrame:
    """Return the events that the ledger names, with the default values that trace lines leave out."""
    schema = _schema_of_tables()
    folders = [str(folder) for folder in ledger.data()]
    if not folders:
        columns = ", ".join(f"cast(null as {field.dataType.simpleString()}) as {field.name}" for field in schema)
        return session.sql(f"select {columns} where false")
    rows = session.read.schema(schema).parquet(*folders)
    texts = [field.name for field in schema if field.dataType.typeName() == "string" and field.name != CORRUPT]
    numbers = [field.name for field in schema if field.dataType.typeName() != "string" and field.name != "edge_bytes"]
    return rows.fillna("", texts).fillna(0, numbers).fillna(-1, ["edge_bytes"])
