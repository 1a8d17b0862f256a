"""The step from trace files to Parquet tables: it adds each event exactly once. A call adds all new events, or none."""

import re
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from xxhash import xxh64_intdigest

from tunnel.analysis.failures import NoTracesError, failure_of
from tunnel.analysis.folders import Folder
from tunnel.analysis.hadoop import spark_name_of
from tunnel.analysis.intake import Added, add_new
from tunnel.analysis.ledger import Intake, Ledger
from tunnel.analysis.schema import CORRUPT, events_schema

__all__ = ["compact", "read_events"]

_PATTERN = re.compile(r"[\\{}\[\]*?]")
_SEED_OF_SPARK = 42  # of the function xxhash64


def compact(
    session: SparkSession, traces: Folder, ledger: Ledger, progress: Callable[[str], None] = lambda text: None
) -> Intake:
    """Add the new files of a folder to the tables of the ledger.

    It may be interrupted and called again. Raise NoTracesError if the folder does not exist, or if it has no traces and
    the tables have none from before. Raise SetupError or JobError if Spark could not add the files; then it added none.
    """
    if not traces.is_folder():
        raise NoTracesError(f"{traces.place()} is not a directory: name the one that --trace wrote to")

    def append(files: list[str], data: str) -> dict[str, Added]:
        progress(f"adding {len(files)} trace files to the tables")
        try:
            return _append(session, files, ledger.folder, data)
        except Exception as error:  # the classes differ between versions of Spark, and some are of Java
            raise failure_of(error, f"nothing was added to the tables in {ledger.place}") from error

    progress("reading the traces")
    intake = add_new(traces, ledger, append)
    if not intake.files:
        raise NoTracesError(f"no traces in {traces.place()}: run a command with --trace {traces.place()} first")
    return intake


def _append(session: SparkSession, files: list[str], folder: Folder, data: str) -> dict[str, Added]:
    """Write the lines of all files to a new folder, and count for each file the lines that the folder then has."""
    path = F.col("_metadata.file_path")
    lines = (
        session.read.schema(events_schema())
        .option("columnNameOfCorruptRecord", CORRUPT)
        .option("lineSep", "\n")
        .json([_literally(uri) for uri in files])
        .withColumn("source", F.hex(F.xxhash64(path)))
    )
    lines.write.mode("errorifexists").parquet(folder.uri(data))
    written: dict[str, int] = {}
    if folder.is_folder(data):  # where workers have a file system of their own, they wrote to theirs
        rows = session.read.schema(_schema_of_tables()).parquet(_literally(folder.uri(data)))
        written = {row["source"]: row["count"] for row in rows.groupBy("source").count().collect()}
    names = {uri: spark_name_of(session, uri).encode() for uri in files}
    sources = {uri: f"{xxh64_intdigest(name, _SEED_OF_SPARK):X}" for uri, name in names.items()}
    return {uri: Added(source, written.get(source, 0)) for uri, source in sources.items()}


def _literally(uri: str) -> str:
    """Return a URI in which Spark takes brackets and asterisks for what they are, and not for patterns."""
    return _PATTERN.sub(r"\\\g<0>", uri)


def _schema_of_tables() -> StructType:
    return events_schema().add("source", "string")


def read_events(session: SparkSession, ledger: Ledger) -> DataFrame:
    """Return the events that the ledger names, with the default values that trace lines leave out."""
    schema = _schema_of_tables()
    folders = [_literally(ledger.folder.uri(name)) for name in ledger.data()]
    if not folders:
        columns = ", ".join(f"cast(null as {field.dataType.simpleString()}) as {field.name}" for field in schema)
        return session.sql(f"select {columns} where false")
    rows = session.read.schema(schema).parquet(*folders)
    texts = [field.name for field in schema if field.dataType.typeName() == "string" and field.name != CORRUPT]
    numbers = [field.name for field in schema if field.dataType.typeName() != "string" and field.name != "edge_bytes"]
    return rows.fillna("", texts).fillna(0, numbers).fillna(-1, ["edge_bytes"])
