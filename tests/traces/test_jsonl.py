"""JSON lines: written records are read back, and an error about a damaged line names its place."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.traces import TraceCause, TraceEvent, TraceRecord
from tunnel.traces.jsonl import JsonLinesWriter, decode_record, encode_record, read_records

# The numbers from 0 that fit a signed 64-bit column of a table.
INTEGERS = st.integers(0, 2**63 - 1)


def records(count: int) -> list[TraceRecord]:
    return [
        TraceRecord(time_us=number, node="a", event=TraceEvent.PACKET_SENT, cause=TraceCause.PTO_PROBE, sequence=number)
        for number in range(count)
    ]


def written(count: int) -> list[TraceRecord]:
    """The same records, with the fields that the writer adds."""
    return [
        msgspec.structs.replace(record, writer="trace", number=number)
        for number, record in enumerate(records(count), start=1)
    ]


@given(INTEGERS, st.text(), INTEGERS, st.text())
def test_a_record_reads_back_from_its_line(time_us: int, node: str, sequence: int, text: str) -> None:
    record = TraceRecord(time_us=time_us, node=node, event="x", sequence=sequence, text=text)
    line = encode_record(record)
    assert b"\n" not in line
    assert decode_record(line) == record


def test_a_file_gives_back_its_records_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with JsonLinesWriter(path) as sink:
        for record in records(1000):
            sink(record)
    assert list(read_records(path)) == written(1000)
    assert path.read_bytes().count(b"\n") == 1000


def test_a_new_writer_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for count in (3, 1):
        with JsonLinesWriter(str(path)) as sink:
            for record in records(count):
                sink(record)
    assert list(read_records(str(path))) == written(1)


def test_a_second_close_has_no_effect_and_later_records_are_an_error(tmp_path: Path) -> None:
    sink = JsonLinesWriter(tmp_path / "trace.jsonl")
    sink.close()
    sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink(records(1)[0])


def test_an_error_names_the_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(encode_record(records(1)[0]) + b'\n{"version":1,"time_us"')
    reader = read_records(path)
    assert next(reader) == records(1)[0]
    with pytest.raises(ValueError, match=r"trace\.jsonl:2: "):
        next(reader)


def test_only_its_owner_reads_a_trace(tmp_path: Path) -> None:
    """It names targets and users."""
    JsonLinesWriter(tmp_path / "a.jsonl").close()
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600
