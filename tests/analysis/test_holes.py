"""The times for which a writer has no records; and the writer's own reports of them."""

from pathlib import Path

from tunnel.analysis.holes import merged
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import read_trace
from tunnel.traces.writer import TraceWriter


def hole(writer: str, begin: int, end: int) -> dict[str, object]:
    return {"writer": writer, "begin": begin, "end": end}


def test_holes_of_one_writer_that_meet_are_one() -> None:
    rows = [hole("a", 5_000_000, 6_000_000), hole("b", 0, 1), hole("a", 1_000_000, 3_000_000)]
    rows += [hole("a", 2_000_000, 2_500_000), hole("a", 3_150_000, 3_200_000)]
    assert merged(rows) == {
        "a": [(900_000, 3_300_000), (4_900_000, 6_100_000)],
        "b": [(-100_000, 100_001)],
    }
    assert merged([]) == {}


def test_dropped_records_lie_between_the_record_before_their_report_and_the_report(tmp_path: Path) -> None:
    """They do so although older records may follow the report. holes_of depends on this."""
    now = 0
    refused: list[int] = []
    with TraceWriter(tmp_path, queue_records=8) as trace:
        while len(refused) < 3:
            now += 1
            before = trace._refused
            trace(TraceRecord(time_us=now, node="n", event=TraceEvent.LOOP_LAG))
            if trace._refused > before:
                refused.append(now)
    records = [record for path in tmp_path.iterdir() for record in read_trace(path)]
    before_us = 0
    for record in records:
        if record.event == TraceEvent.TRACE_DROPPED:
            told, refused = refused[: record.count], refused[record.count :]
            assert all(before_us < time_us <= record.time_us for time_us in told)
        before_us = record.time_us
    assert not refused
    assert records[-1].number == len(records) + 3
