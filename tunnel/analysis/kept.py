"""Tables that several queries share: computed once, kept until they are no longer needed, and cheap to build on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame

__all__ = ["kept"]


@contextmanager
def kept(table: DataFrame) -> Iterator[DataFrame]:
    """Yield a table with the same rows, which Spark computes at their first use and keeps while the context lasts.

    `persist` alone leaves in the plan how the table is computed. Spark then analyses and compares all of that again for
    each table that is built on this one, though it never runs that part again: this took a quarter of the time of a
    short report. So the table that is yielded has only the kept rows as its plan.
    """
    table.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield _of_kept_rows(table)
    finally:
        table.unpersist()


def _of_kept_rows(table: Any) -> DataFrame:
    """Return the table whose plan is the kept rows of a persisted table. Spark has a call for this only in Java."""
    session = table.sparkSession
    plan = table._jdf.queryExecution().withCachedData()  # noqa: SLF001
    java = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)  # noqa: SLF001
    rows: DataFrame = type(table)(java, session)
    return rows
