"""The columns are the record's fields."""

import msgspec

from tunnel.analysis.schema import CORRUPT, events_schema
from tunnel.traces import TraceRecord


def test_every_field_is_a_column_of_its_type() -> None:
    columns = {field.name: field.dataType.simpleString() for field in events_schema()}
    names = [field.name for field in msgspec.structs.fields(TraceRecord)]
    assert list(columns) == ["version", *names, CORRUPT]
    assert columns["time_us"] == columns["sequence"] == "bigint"
    assert columns["node"] == columns["text"] == columns[CORRUPT] == "string"
    assert columns["attempt"] == "int"
