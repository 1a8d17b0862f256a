"""The tables: their columns follow from the trace record, so that there is one definition of both."""

import msgspec
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tunnel.traces.record import TraceRecord

__all__ = ["CORRUPT", "EVENT_COLUMNS", "events_schema"]

CORRUPT = "_corrupt_record"  # Spark's own name: the text of a line that is no JSON
EVENT_COLUMNS = tuple(field.name for field in msgspec.structs.fields(TraceRecord))

# Small numbers are narrow columns: the tables are sorted and moved by the million.
_NARROW = frozenset({"packet_type", "attempt", "backoff", "lane", "status"})


def events_schema() -> StructType:
    """A line of a trace: the version, the record's fields, and room for a line that is none of ours."""
    columns = [StructField("version", IntegerType())]
    for field in msgspec.structs.fields(TraceRecord):
        narrow = IntegerType() if field.name in _NARROW else LongType()
        columns.append(StructField(field.name, StringType() if field.type is str else narrow))
    columns.append(StructField(CORRUPT, StringType()))
    return StructType(columns)
