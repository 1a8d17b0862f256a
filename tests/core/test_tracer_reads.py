"""What a trace says of an application that reads late: for how long bytes waited for it."""

from tests.core.rig import Sink, data, opened
from tests.core.solo import MS, PEER, Solo
from tunnel.core.tracer import LATE_US
from tunnel.traces.record import TraceEvent, TraceLevel, TraceRecord

WAITED = TraceEvent.STREAM_DATA_WAITED


def read(solo: Solo, size: int = 1 << 20) -> None:
    solo.connection.read(size, solo.now)


def waits(sink: Sink) -> list[tuple[int, int, int]]:
    return [(record.latency_us, record.size_bytes, record.backlog_bytes) for record in sink.of(WAITED)]


def test_bytes_that_are_read_in_good_time_are_not_recorded() -> None:
    solo, sink = opened()
    solo.receive(data(solo, 1, b"one"))
    solo.wait(LATE_US - 1)
    read(solo)
    read(solo)  # nothing is left
    assert waits(sink) == []


def test_the_oldest_byte_that_was_read_late_tells_the_time() -> None:
    solo, sink = opened()
    solo.receive(data(solo, 1, b"one"))
    solo.wait(30 * MS)
    solo.receive(data(solo, 2, b"three"))
    solo.wait(LATE_US - 30 * MS)
    read(solo, 3)
    assert sink.only(WAITED) == TraceRecord(
        time_us=solo.now,
        node="solo",
        event=WAITED,
        connection=solo.connection.id,
        peer=PEER,
        size_bytes=3,
        backlog_bytes=5,
        latency_us=LATE_US,
    )
    solo.wait(LATE_US)
    read(solo)
    assert waits(sink)[1:] == [(2 * LATE_US - 30 * MS, 5, 0)]


def test_there_is_at_most_one_record_in_a_tenth_of_a_second_but_the_last_byte_has_one() -> None:
    solo, sink = opened()
    solo.receive(data(solo, 1, bytes(10)))
    solo.wait(5 * LATE_US)
    for _ in range(9):
        read(solo, 1)
        solo.wait(MS)
    assert waits(sink) == [(5 * LATE_US, 1, 9)]
    read(solo, 1)
    assert waits(sink)[1:] == [(5 * LATE_US + 9 * MS, 9, 0)]


def test_arrivals_close_to_each_other_count_as_one() -> None:
    solo, sink = opened()
    for number in (1, 2, 3):
        solo.receive(data(solo, number, b"x"))
        solo.wait(10 * MS)
    solo.wait(LATE_US)
    read(solo, 2)
    assert waits(sink) == [(LATE_US + 30 * MS, 2, 1)]
    solo.wait(LATE_US)
    read(solo)
    assert waits(sink)[1:] == [(2 * LATE_US + 30 * MS, 1, 0)]


def test_bytes_behind_a_gap_do_not_wait_for_the_application() -> None:
    solo, sink = opened()
    solo.receive(data(solo, 2, b"two"))
    solo.wait(5 * LATE_US)
    solo.receive(data(solo, 1, b"one"))
    solo.wait(LATE_US)
    read(solo)
    read(solo)
    assert [latency_us for latency_us, _, _ in waits(sink)] == [LATE_US]


def test_what_nobody_reads_is_recorded_when_more_comes() -> None:
    solo, sink = opened()
    for number in range(1, 22):
        solo.receive(data(solo, number, b"x"))
        solo.wait(LATE_US)
    assert waits(sink) == [(10 * LATE_US, 0, 11), (20 * LATE_US, 0, 21)]


def test_an_application_that_closed_does_not_wait() -> None:
    solo, sink = opened()
    solo.receive(data(solo, 1, b"one"))
    solo.connection.close(solo.now)
    solo.wait(3 * LATE_US)
    solo.connection.abort(solo.now)
    solo.endpoint.handle_timeout(solo.now)
    assert waits(sink) == []


def test_late_reads_are_details_of_the_level_packet() -> None:
    solo, sink = opened(TraceLevel.CONNECTION)
    solo.receive(data(solo, 1, b"one"))
    solo.wait(3 * LATE_US)
    read(solo)
    assert waits(sink) == []


def test_hours_of_unread_bytes_take_no_more_memory() -> None:
    solo, sink = opened()
    for number in range(1, 1_200):
        solo.receive(data(solo, number, b"x"))
        solo.wait(LATE_US)
    assert solo.endpoint.tracer is not None
    (unread,) = solo.endpoint.tracer._unread.values()
    assert len(unread.arrivals) == 1_000
    read(solo)
    assert sink.of(WAITED)[-1].latency_us == 1_199 * LATE_US
    while solo.connection.readable:
        read(solo)
    assert sink.of(WAITED)[-1].backlog_bytes == 0
    assert not solo.endpoint.tracer._unread
