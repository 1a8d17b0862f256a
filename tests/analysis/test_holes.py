"""The times for which a writer has no records; and the writer's own reports of them."""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.analysis.engines import duckdb
from tunnel.analysis.engines.queries import query
from tunnel.analysis.results.holes import by_writer, merged
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import read_trace
from tunnel.traces.writer import TraceWriter


def hole(writer: str, begin: int, end: int) -> dict[str, object]:
    return {"writer": writer, "begin_us": begin, "end_us": end}


def test_holes_of_one_writer_that_meet_are_one() -> None:
    rows = [hole("a", 5_000_000, 6_000_000), hole("b", 0, 1), hole("a", 1_000_000, 3_000_000)]
    rows += [hole("a", 2_000_000, 2_500_000), hole("a", 3_150_000, 3_200_000)]
    assert merged(rows) == {
        "a": [(900_000, 3_300_000), (4_900_000, 6_100_000)],
        "b": [(-100_000, 100_001)],
    }
    assert merged([]) == {}


def test_holes_meet_where_their_slack_does() -> None:
    assert merged([hole("a", 0, 1_000), hole("a", 201_000, 300_000)]) == {"a": [(-100_000, 400_000)]}
    assert merged([hole("a", 0, 1_000), hole("a", 201_001, 300_000)]) == {
        "a": [(-100_000, 101_000), (101_001, 400_000)]
    }


@pytest.mark.parametrize("range_bits", [1, 3, 20])
def test_holes_are_found_wherever_the_ranges_of_numbers_end(range_bits: int) -> None:
    random = Random(range_bits)
    numbers = sorted([*random.sample(range(1, 200), 120), 1_000, 1_001])
    events = [{"writer_id": 1, "number": number, "time_us": 1_000 * number} for number in numbers]
    whole = [{"writer_id": 2, "number": number, "time_us": number} for number in range(1, 20)]
    writers = [{"writer": "a", "writer_id": 1, "is_incomplete": True}]
    with duckdb() as engine:
        engine.table("events", "writer_id int, number bigint, time_us bigint", events + whole)
        engine.table("writers", "writer string, writer_id int, is_incomplete boolean", writers)
        rows = engine.rows(query("holes", slack_us=1, range_bits=range_bits))
    expected = [(before, after) for before, after in pairwise(numbers) if after > before + 1]
    assert [(row["begin_us"] // 1_000, row["end_us"] // 1_000) for row in rows] == expected


def file_of(writer: str, begin_us: int | None, end_us: int | None) -> dict[str, Any]:
    return {"writer": writer, "begin_us": begin_us, "end_us": end_us}


def test_a_writer_has_no_records_before_its_first_and_after_its_last() -> None:
    files = [file_of("a", 50, 60), file_of("b", 7, 8), file_of("a", 10, 20), file_of("a", 30, 40)]
    files += [file_of("a", None, None), file_of("c", None, None)]  # files without a valid record
    rows = by_writer(files, {"b": [(1, 2), (3, 4)], "d": [(5, 6)]})
    found = {
        row["writer"]: (row["until_us"], [(hole["begin_us"], hole["end_us"]) for hole in row["holes"]]) for row in rows
    }
    (ever, _), *_ = found["a"][1]
    assert ever < -1_000 * 365 * 24 * 3600 * 1_000_000
    assert found == {"a": (60, [(ever, 10)]), "b": (8, [(ever, 7), (1, 2), (3, 4)])}


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
