"""The schema of the tables. It is derived from the trace record, so that columns are defined only once."""

import msgspec
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tunnel.traces.record import TraceRecord

__all__ = ["CORRUPT", "events_schema"]

CORRUPT = "_corrupt_record"  # Spark's own name for the column with the text of a line that is not JSON

# Small numbers get narrow columns, because millions of rows are sorted and moved.
_NARROW = frozenset({"packet_type", "attempt", "backoff", "lane", "status"})


def events_schema() -> StructType:
    """Return the schema of a trace line: the version, the record's fields, and a column for invalid lines."""
    columns = [StructField("version", IntegerType())]
    for field in msgspec.structs.fields(TraceRecord):
        narrow = IntegerType() if field.name in _NARROW else LongType()
        columns.append(StructField(field.name, StringType() if field.type is str else narrow))
    columns.append(StructField(CORRUPT, StringType()))
    return StructType(columns)
