"""Spark as the engine: on this machine or on a cluster, for traces and tables in any file system that Hadoop knows."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from xxhash import xxh64_intdigest

from tunnel.analysis.engines.engine import Rows
from tunnel.analysis.engines.failures import failure_of
from tunnel.analysis.engines.folders import Folder, LocalFolder, local_path
from tunnel.analysis.engines.hadoop import HadoopFolder, spark_name_of
from tunnel.analysis.engines.schema import DDL, KEYS, ORDER, STORED, STREAM

__all__ = ["SparkEngine"]

# what the queries use that Spark lacks
_FUNCTION = (
    "create or replace temporary function in_hole("
    "holes array<struct<begin_us: bigint, end_us: bigint>>, since_us bigint, until_us bigint) returns boolean "
    "return exists(holes, hole -> hole.begin_us <= until_us and hole.end_us >= since_us)"
)
_LAST_KNOWN = re.compile(r"\blast_known\((\w+)\)")
_PATTERN = re.compile(r"[\\{}\[\]*?]")
_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in STORED.items())
_SEED_OF_SPARK = 42  # of the function xxhash64


class SparkEngine:
    """A session of Spark. Its tables are temporary views of the session."""

    def __init__(self, session: SparkSession) -> None:
        self.name = f"Spark {session.version}"
        self.session = session
        session.sql(_FUNCTION)

    def folder(self, place: str) -> Folder:
        path = local_path(place)
        return HadoopFolder(self.session, place) if path is None else LocalFolder(path)

    def append(self, files: list[str], folder: Folder, data: str) -> dict[str, str]:
        """Write the lines as the tasks read them, each in the order of their streams: this moves none between tasks."""
        lines = (
            self.session.read.schema(DDL)
            .option("lineSep", "\n")
            .json([_literally(uri) for uri in files])
            .withColumns({name: F.expr(value) for name, value in KEYS.items()})
            .withColumn("stream", F.expr(f"coalesce({STREAM}, -1)"))
            .withColumn("source", F.hex(F.xxhash64(F.col("_metadata.file_path"))))
        )
        lines.sortWithinPartitions(*ORDER).write.mode("errorifexists").parquet(folder.uri(data))
        names = {uri: spark_name_of(self.session, uri).encode() for uri in files}
        return {uri: f"{xxh64_intdigest(name, _SEED_OF_SPARK):X}" for uri, name in names.items()}

    def merge(self, folders: list[str], folder: Folder, data: str) -> None:
        rows = self._rows_in(folder, folders).repartitionByRange(F.col("stream"), F.col("node"))
        rows.sortWithinPartitions(*ORDER).write.mode("errorifexists").parquet(folder.uri(data))

    def read(self, folder: Folder, folders: list[str], name: str = "stored") -> None:
        present = [each for each in folders if folder.is_folder(each)]  # workers may have written to their own disks
        if present:
            self._rows_in(folder, present).createOrReplaceTempView(name)
        else:
            self.table(name, _SCHEMA, [])

    def store(self, text: str, folder: Folder, data: str) -> None:
        self._table_of(text).write.mode("errorifexists").parquet(folder.uri(data))

    @contextmanager
    def load(self, name: str, folder: Folder, folders: list[str]) -> Iterator[None]:
        rows = self.session.read.parquet(*(_literally(folder.uri(each)) for each in folders))
        rows.createOrReplaceTempView(name)
        yield

    def _rows_in(self, folder: Folder, folders: list[str]) -> DataFrame:
        return self.session.read.schema(_SCHEMA).parquet(*(_literally(folder.uri(name)) for name in folders))

    def table(self, name: str, columns: str, rows: Rows) -> None:
        """Make the table from one text: Spark would start Python on its workers to read one made of Python's values."""
        fields = re.sub(r"(\w+) (\w+)", r"\1: \2", columns)
        text = f"select inline(from_json(:rows, 'array<struct<{fields}>>'))"
        self.session.sql(text, args={"rows": json.dumps(rows)}).createOrReplaceTempView(name)

    def view(self, name: str, text: str) -> None:
        self._table_of(text).createOrReplaceTempView(name)

    @contextmanager
    def keep(self, name: str, text: str) -> Iterator[None]:
        """Name a query whose rows Spark computes at their first use, and keeps while the context lasts.

        `persist` alone leaves in the plan how the table is computed. Spark then analyses and compares all of that again
        for each query that reads this one, though it never runs that part again: this took a quarter of the time of a
        short report. So the name stands for a table that has only the kept rows as its plan.
        """
        table = self._table_of(text).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            _of_kept_rows(table).createOrReplaceTempView(name)
            yield
        finally:
            table.unpersist()

    def rows(self, text: str) -> Rows:
        return [row.asDict() for row in self._table_of(text).collect()]

    def failure_of(self, error: Exception, result: str) -> Exception:
        return failure_of(error, result, "Spark")

    def _table_of(self, text: str) -> DataFrame:
        return self.session.sql(_LAST_KNOWN.sub(r"last_value(\1, true)", text))


def _of_kept_rows(table: Any) -> DataFrame:
    """Return the table whose plan is the kept rows of a persisted table. Spark has a call for this only in Java."""
    session = table.sparkSession
    plan = table._jdf.queryExecution().withCachedData()  # noqa: SLF001
    java = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)  # noqa: SLF001
    rows: DataFrame = type(table)(java, session)
    return rows


def _literally(uri: str) -> str:
    """Return a URI in which Spark takes brackets and asterisks for what they are, and not for patterns."""
    return _PATTERN.sub(r"\\\g<0>", uri)
