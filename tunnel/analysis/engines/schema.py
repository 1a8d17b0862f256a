"""The columns of the tables. They are derived from the trace record, so that they are defined only once."""

import msgspec

from tunnel.traces.record import TraceRecord

__all__ = ["COLUMNS", "DDL", "KEYS", "ORDER", "STORED", "STREAM"]

# Small numbers get narrow columns, because millions of rows are sorted and moved.
_NARROW = frozenset({"packet_type", "attempt", "backoff", "lane", "status"})


# No program of ours writes larger numbers. A query that adds or multiplies two of them fails, and with it the whole
# report; these leave room for every sum and product in the queries.
_TIME_MAX_US = 1 << 52  # 142 years
_NUMBER_MAX = 1 << 50


def _type_of(field: msgspec.structs.FieldInfo) -> str:
    if field.type is str:
        return "string"
    return "int" if field.name in _NARROW else "bigint"


COLUMNS: dict[str, str] = {
    "version": "int",
    **{field.name: _type_of(field) for field in msgspec.structs.fields(TraceRecord)},
}
"""The columns of a trace line: the version and the record's fields, each with the name that SQL has for its type."""

DDL = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
"""The same as a list that both engines read."""

STREAM = """case
    when (event = 'packet_received' and packet_type in (4, 5, 10, 13)) or event = 'stream_data_waited' then peer
    when event in ('packet_sent', 'packet_received', 'packets_acked', 'packets_sacked', 'packet_recovered',
        'spurious_retransmit', 'connection_closed', 'route_bound', 'route_resumed') then connection
    else -1
end"""
"""The stream to which a line belongs, which `flow.sql` explains; -1 for events of a whole node."""


def _is_impossible() -> str:
    bounds = {name: _TIME_MAX_US if name in ("time_us", "wall_us") else _NUMBER_MAX for name in COLUMNS}
    told = [f"{name} < {-bounds[name]} or {name} > {bounds[name]}" for name in COLUMNS if COLUMNS[name] == "bigint"]
    return " or ".join(["attempt < 0", *told])


KEYS: dict[str, str] = {
    name: f"case when version = 1 and coalesce({_is_impossible()}, false) then null else {name} end"
    for name in ("version", "time_us")
}
"""What the tables have of the columns that every line must have: nothing if the line has an impossible number, so that
it counts as one that is no JSON."""

STORED: dict[str, str] = {**COLUMNS, "stream": "bigint", "source": "string"}
"""The columns of the tables. source: the file that brought the row."""

ORDER = ("stream", "node", "time_us")
"""The order of the rows in the tables, so that a reader of few streams finds them together."""
