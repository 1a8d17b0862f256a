"""The schema: flat, integers and strings only, versioned, small when written."""

import enum
import re
from typing import Any

import msgspec
import pytest

from loadtests.harness.tree import ROOT
from tunnel.core import LostReason
from tunnel.traces import (
    TRACE_VERSION,
    TraceCause,
    TraceEvent,
    TraceFault,
    TraceLevel,
    TraceReason,
    TraceRecord,
    level_of,
)
from tunnel.traces.jsonl import decode_record, encode_record
from tunnel.traces.record import TraceSource

# Product, load tests and the simulator write traces; other tests only read or imitate them.
FOLDERS = ("tunnel", "servlet", "client", "loadtests", "tests/sim")
SOURCES = [path.read_text() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def record(**fields: int | str) -> TraceRecord:
    return msgspec.convert({"time_us": 1, "node": "a", "event": TraceEvent.PACKET_SENT, **fields}, TraceRecord)


def test_every_field_is_an_integer_or_a_string() -> None:
    assert {field.type for field in msgspec.structs.fields(TraceRecord)} == {int, str}


def test_all_fields_but_time_node_and_event_have_a_default() -> None:
    required = [field.name for field in msgspec.structs.fields(TraceRecord) if field.required]
    assert required == ["time_us", "node", "event"]


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        record().time_us = 2  # type: ignore[misc]


def test_a_line_begins_with_the_version_and_leaves_defaults_out() -> None:
    assert encode_record(record()) == b'{"version":1,"time_us":1,"node":"a","event":"packet_sent"}'
    assert TRACE_VERSION == 1


def test_a_line_has_the_field_order_of_the_schema() -> None:
    names = [field.name for field in msgspec.structs.fields(TraceRecord)]
    values: dict[str, int | str] = {
        field.name: "x" if field.type is str else number
        for number, field in enumerate(msgspec.structs.fields(TraceRecord), start=1)
    }
    line = encode_record(record(**dict(reversed(values.items()))))
    assert list(msgspec.json.decode(line)) == ["version", *names]
    assert decode_record(line) == record(**values)


def test_a_record_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version"):
        decode_record(b'{"version":2,"time_us":1,"node":"a","event":"packet_sent"}')


def test_an_unknown_field_is_skipped() -> None:
    assert decode_record(b'{"version":1,"time_us":1,"node":"a","event":"packet_sent","later":7}') == record()


@pytest.mark.parametrize("names", [TraceEvent, TraceCause, TraceReason, TraceFault])
def test_names_are_lower_case_words_and_unique(names: type[enum.StrEnum]) -> None:
    for member in names:
        assert member.value.replace("_", "").isalpha()
        assert member.value == member.value.lower() == member.name.lower()
    assert len(names) == len(names.__members__)


@pytest.mark.parametrize("names", [TraceEvent, TraceCause, TraceReason, TraceFault])
def test_each_name_of_the_schema_is_written_by_some_part(names: type[enum.StrEnum]) -> None:
    written = {name for text in SOURCES for name in re.findall(rf"\b{names.__name__}\.([A-Z_]+)\b", text)}
    if names is TraceReason:  # the tracer of endpoints writes these by their names
        assert set(LostReason.__members__) <= set(names.__members__)
        written |= {"CLEAN", *LostReason.__members__}
    assert set(names.__members__) <= written


def test_a_source_can_set_every_field_and_others_keep_their_defaults() -> None:
    told: list[TraceRecord] = []
    source = TraceSource(told.append, "node-1")
    given: dict[str, Any] = {
        field.name: f"x{number}" if field.type is str else number
        for number, field in enumerate(msgspec.structs.fields(TraceRecord), start=1)
        if field.name
        not in ("time_us", "node", "event", "writer", "number", "wall_us")  # the writer sets the last three
    }
    source.tell("event", 5, **given)
    source.tell("event", 6)
    assert told == [
        TraceRecord(time_us=5, node="node-1", event="event", **given),
        TraceRecord(time_us=6, node="node-1", event="event"),
    ]


def test_a_sink_that_names_no_level_gets_everything() -> None:
    class Quiet:
        level = TraceLevel.CONNECTION

        def __call__(self, record: TraceRecord) -> None: ...

    assert level_of(print) is TraceLevel.PACKET
    assert level_of(Quiet()) is TraceLevel.CONNECTION
    assert level_of(None) is TraceLevel.OFF
