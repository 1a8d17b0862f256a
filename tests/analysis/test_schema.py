"""The columns are the record's fields, and what streams are made of belongs to one."""

import re

import msgspec

from tunnel.analysis.engines.queries import query
from tunnel.analysis.engines.schema import COLUMNS, DDL, STREAM
from tunnel.traces import TraceRecord


def test_every_field_is_a_column_of_its_type() -> None:
    names = [field.name for field in msgspec.structs.fields(TraceRecord)]
    assert list(COLUMNS) == ["version", *names]
    assert COLUMNS["time_us"] == COLUMNS["sequence"] == "bigint"
    assert COLUMNS["node"] == COLUMNS["text"] == "string"
    assert COLUMNS["attempt"] == "int"
    assert DDL.startswith("version int, time_us bigint, node string, ")


def test_all_events_of_which_streams_are_made_belong_to_a_stream() -> None:
    """Otherwise the queries of streams would never find them."""
    told = re.findall(r"from events_part\s+where event ([^)]*)\)", query("flow") + query("unread"))
    events = set(re.findall(r"'(\w+)'", "".join(told)))
    assert {"packet_sent", "stream_data_waited"} < events
    assert events <= set(re.findall(r"'(\w+)'", STREAM))
