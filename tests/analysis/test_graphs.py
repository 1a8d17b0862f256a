"""The graphs of single streams: nothing visible is left out, whatever else is drawn, and clocks are aligned."""

from pathlib import Path

import pytest

from tests.analysis.drawn import KILLED
from tests.analysis.ends import AWAY_US, ENDS, TRIP_US, stream_of
from tests.analysis.job import Found
from tunnel.analysis.results.analyse import GRAPH_COLUMNS, GRAPH_ROWS
from tunnel.analysis.results.result import ACKED, RECEIVED, SACKED, SENT
from tunnel.traces import TraceEvent
from tunnel.traces.jsonl import read_trace

pytestmark = pytest.mark.timeout(1600)


def test_the_points_of_a_stream_do_not_depend_on_other_streams(found: Found) -> None:
    assert found.drawn.points == found.drawn.among_others


def test_every_repeat_is_drawn(found: Found, job_directory: Path) -> None:
    sent = [
        record
        for record in read_trace(job_directory / "ends" / f"sender-{KILLED}.jsonl")
        if record.event == TraceEvent.PACKET_SENT
    ]
    ahead_us = found.drawn.clocks[f"sender-{KILLED}"][0]
    repeats = [(record.time_us - ahead_us, record.sequence) for record in sent if record.attempt]
    points = [(row["t"], row["sequence"]) for row in found.drawn.points if row["kind"] == SENT and row["attempt"]]
    wide = (max(row["t"] for row in found.drawn.points) - min(row["t"] for row in found.drawn.points)) / GRAPH_COLUMNS
    high = (max(record.sequence for record in sent) - min(record.sequence for record in sent)) / GRAPH_ROWS
    assert len(repeats) == 2_000
    assert set(points) <= set(repeats)
    for t, sequence in repeats:
        assert any(abs(t - at) <= wide and abs(sequence - number) <= high for at, number in points)


def test_there_are_few_points_of_each_kind(found: Found) -> None:
    for kind in (SENT, RECEIVED, ACKED):
        count = sum(row["kind"] == kind for row in found.drawn.points)
        assert 0 < count <= 2 * (GRAPH_COLUMNS + GRAPH_ROWS)


def test_packets_acknowledged_beyond_a_gap_are_drawn(found: Found, job_directory: Path) -> None:
    records = [each for path in (job_directory / "truth").glob("*.zst") for each in read_trace(path)]
    told = {
        (each.connection, each.time_us, each.sequence, each.count)
        for each in records
        if each.event == TraceEvent.PACKETS_SACKED
    }
    drawn = {
        (int(stream), row["t"], row["sequence"], row["acked"])
        for stream, points in found.truth.points.items()
        for row in points
        if row["kind"] == SACKED
    }
    assert len(drawn) > 100
    assert drawn <= told


def test_both_ends_share_a_time_axis(found: Found) -> None:
    first = {
        kind: min(row["t"] for row in found.drawn.points if row["kind"] == kind) for kind in (SENT, RECEIVED, ACKED)
    }
    assert first[SENT] <= first[RECEIVED] <= first[ACKED]


def test_a_receiver_whose_clock_is_far_ahead_is_aligned_with_its_sender(found: Found) -> None:
    ahead = {
        ends.name: found.drawn.clocks[f"sender-{stream_of(ends)}"][0]
        - found.drawn.clocks[f"receiver-{stream_of(ends)}"][0]
        for ends in ENDS
        if ends.sender and ends.receiver and ends.arrives
    }
    # packets go in one direction only, so the time to the receiver counts as part of the difference
    assert set(ahead.values()) == {-AWAY_US - TRIP_US // 2}
    assert {how for _, how in found.drawn.clocks.values()} == {"reference", "packets", "nothing"}
