"""The relay's half of a streamed answer (PROTOCOL 7.20), rule by rule."""

from typing import Any

from msgspec.structs import replace

from tests.exchange.loop import MemoryOutbox, data_frame
from tunnel.exchange.config import KIB
from tunnel.exchange.path.window import PathWindow
from tunnel.exchange.served.served import Reply, ServedLane, ServedLimits, ServedRequest
from tunnel.wire import Exchange, parse_packets

MS = 1000
SECOND = 1_000_000
LIMITS = ServedLimits(
    lanes=2, packet_bytes_max=1 << 20, answer_bytes_max=1 << 20, hold_us_max=60 * SECOND, streams=True
)


class Bench:
    """A lane whose answer to request 1 is a stream with handle 1."""

    def __init__(self, *, limit_bytes: int = 1 << 26, hold_ms: int = 30_000, limits: ServedLimits = LIMITS) -> None:
        self.outbox = MemoryOutbox()
        self.window = PathWindow()
        self.lane = ServedLane(0, self.outbox, lambda: [(0, self.lane.answered)], limits, self.window)
        self.handle = 0
        self.first = self.request(1, stream=True, pull=True, hold_ms=hold_ms, answer_bytes_max=limit_bytes)

    def give(self, *names: int, size: int = 100) -> None:
        self.outbox.frames.extend(data_frame(name, size) for name in names)

    def receive(self, number: int, received: int = 0, now: int = 0, **fields: Any) -> ServedRequest:
        self.handle += 1
        settings: dict[str, Any] = {"answer_bytes_max": 1 << 20, "hold_ms": 0} | fields
        return self.lane.receive(Exchange(bytes(16), 1, 1, 0, number, received, **settings), self.handle, now)

    def request(self, number: int, received: int = 0, now: int = 0, **fields: Any) -> Reply:
        arrival = self.receive(number, received, now, **fields)
        if not arrival.applies:
            return arrival.replies[-1]
        reply = self.lane.answer(now)
        assert reply is not None
        return reply

    def proven(self, now: int = 20 * MS) -> "Bench":
        self.lane.confirm(self.first.answer.serial, now)
        assert self.lane.carries
        return self

    def sent(self, now: int) -> list[list[int]]:
        """Poll envelopes until none is left; return the names of their packets."""
        envelopes = []
        while (reply := self.lane.poll_stream(now)) is not None:
            envelopes.append(names(reply))
        return envelopes


def names(reply: Reply) -> list[int]:
    return [packet.sequence for packet in parse_packets(reply.answer.data)[0]]


def test_the_first_envelope_is_empty_and_leaves_at_once() -> None:
    bench = Bench()
    answer = bench.first.answer
    assert (answer.goes_on, answer.serial, names(bench.first)) == (True, 1, [])
    assert (bench.lane.stream, bench.lane.carries) == (1, False)


def test_a_stream_carries_nothing_before_its_first_envelope_is_confirmed() -> None:
    bench = Bench()
    bench.give(1)
    assert bench.sent(0) == []
    bench.proven()
    assert bench.sent(20 * MS) == [[1]]


def test_serials_are_consecutive_and_all_envelopes_have_the_number_of_the_pull() -> None:
    bench = Bench().proven()
    answers = []
    for name in range(1, 4):
        bench.give(name)
        reply = bench.lane.poll_stream(20 * MS)
        assert reply is not None
        answers.append((reply.handle, reply.answer.number, reply.answer.serial, reply.answer.goes_on))
    assert answers == [(1, 1, 2, True), (1, 1, 3, True), (1, 1, 4, True)]


def test_a_serial_confirms_all_packets_up_to_it_and_only_them() -> None:
    bench = Bench().proven()
    for name in (1, 2, 3):
        bench.give(name)
        bench.sent(20 * MS)
    bench.lane.confirm(3, 40 * MS)
    assert (bench.outbox.freed, bench.lane.held_bytes) == (2, data_frame(3, 100).size)
    bench.lane.confirm(2, 50 * MS)  # a late copy of an older confirmation
    assert bench.outbox.freed == 2


def test_the_next_number_confirms_and_puts_the_rest_back_in_order() -> None:
    bench = Bench().proven()
    for name in (1, 2, 3):
        bench.give(name)
        bench.sent(20 * MS)
    bench.give(4)
    arrival = bench.receive(2, received=2, now=50 * MS)
    (end,) = arrival.replies
    assert (end.handle, end.is_cut) == (1, True)
    assert [frame.sequence for frame in bench.outbox.frames] == [2, 3, 4]
    answer = bench.lane.answer(50 * MS)
    assert answer is not None
    assert names(answer) == [2, 3, 4]


def test_a_repeat_ends_the_stream_and_is_answered_with_the_unconfirmed_packets_that_fit() -> None:
    bench = Bench().proven()
    for name in (1, 2, 3):
        bench.give(name, size=1000)
        bench.sent(20 * MS)
    bench.give(4, size=1000)
    arrival = bench.receive(1, now=50 * MS, answer_bytes_max=2500)
    end, answer = arrival.replies
    assert (end.handle, end.is_cut) == (1, True)
    assert names(answer) == [1, 2]
    assert [frame.sequence for frame in bench.outbox.frames] == [3, 4]
    assert bench.lane.stream is None
    # Whichever of the two answers the endpoint took, the serial that it confirms says which packets it has.
    bench.receive(2, received=2, now=60 * MS)
    assert [frame.sequence for frame in bench.outbox.frames] == [2, 3, 4]


def test_a_copy_of_an_older_number_does_not_disturb_the_stream() -> None:
    bench = Bench()
    bench.request(2, received=1, stream=True, pull=True, hold_ms=1000)
    stray = bench.receive(1).replies[0]
    assert (bench.lane.stream, stray.previous) == (2, 0)
    assert bench.request(3).previous == 2


def test_silence_is_broken_after_1_2_4_8_and_15_s_and_after_packets_from_1_s_again() -> None:
    bench = Bench(hold_ms=60_000).proven(1)
    beats: list[int] = []
    now = 0
    while len(beats) < 6:
        due_us = bench.lane.stream_due_us
        assert due_us is not None
        assert bench.sent(due_us - 1) == []
        assert bench.sent(due_us) == [[]]
        beats.append((due_us - now) // SECOND)
        now = due_us
    assert beats == [1, 2, 4, 8, 15, 15]
    bench.give(1)
    assert bench.sent(now) == [[1]]
    assert bench.sent(now + SECOND) == [[]]


def test_age_and_size_end_a_stream_with_a_last_envelope() -> None:
    bench = Bench(hold_ms=1500).proven()
    assert bench.sent(1000 * MS) == [[]]
    reply = bench.lane.poll_stream(1500 * MS)
    assert reply is not None
    assert (reply.answer.goes_on, reply.is_cut, bench.lane.stream) == (False, False, None)
    small = Bench(limit_bytes=8 * KIB).proven()
    small.give(*range(20), size=1000)
    assert sum(map(len, small.sent(20 * MS))) == 7
    assert small.lane.stream is None
    assert len(small.outbox.frames) == 13


def test_a_packet_for_which_the_stream_has_no_room_left_waits_for_the_next() -> None:
    bench = Bench(limit_bytes=8 * KIB).proven()
    bench.give(1, size=20_000)
    assert bench.sent(20 * MS) == [[]]
    assert (bench.lane.stream, len(bench.outbox.frames)) == (None, 1)


def test_unconfirmed_bytes_stay_within_the_window() -> None:
    bench = Bench().proven()
    bench.give(*range(1000), size=1000)
    bench.sent(20 * MS)
    envelope = bench.window.part_bytes
    assert 256 * KIB <= bench.lane.held_bytes <= 256 * KIB + envelope


def test_without_a_confirmation_for_a_second_everything_is_taken_back() -> None:
    bench = Bench().proven()
    for name in (1, 2):
        bench.give(name)
        bench.sent(100 * MS)
    bench.lane.confirm(2, 600 * MS)  # the second begins again here
    assert bench.lane.check_stream(1500 * MS) == []
    (end,) = bench.lane.check_stream(1600 * MS)
    assert (end.handle, end.is_cut, bench.lane.stream) == (1, True, None)
    assert [frame.sequence for frame in bench.outbox.frames] == [2]
    assert bench.lane.stream_due_us is None
    assert bench.window.window_bytes == 128 * KIB


def test_what_an_application_sends_now_and_then_shows_no_high_rate() -> None:
    """A confirmation may wait for 300 ms, and covers what came long before the newest envelope."""
    bench = Bench().proven()
    for name, now in ((1, 20 * MS), (2, 318 * MS)):
        bench.give(name, size=15_000)
        bench.sent(now)
    bench.lane.confirm(3, 320 * MS)
    assert bench.window.window_bytes == 256 * KIB


def test_a_time_without_envelopes_lowers_no_rate() -> None:
    bench = Bench().proven()
    for name, now, size in ((1, 20 * MS, 1000), (2, 9 * SECOND, 64 * KIB)):
        bench.give(name, size=size)
        bench.sent(now)
        bench.lane.confirm(bench.lane.serial, now + 100 * MS)
    assert bench.window.window_bytes > 1024 * KIB


def test_a_rate_is_counted_for_a_round_trip_while_envelopes_are_on_the_way() -> None:
    bench = Bench().proven()
    bench.give(1, size=1000)
    bench.sent(20 * MS)
    bench.give(*range(2, 5), size=20_000)
    bench.sent(70 * MS)
    bench.lane.confirm(2, 120 * MS)
    bench.lane.confirm(bench.lane.serial, 121 * MS)  # a megabyte a second, if it were counted from 70 ms on
    assert bench.window.window_bytes == 256 * KIB


def test_a_slow_path_gets_four_times_its_least_time_to_confirm() -> None:
    bench = Bench().proven(now=2 * SECOND)
    bench.give(1)
    bench.sent(2 * SECOND)
    assert bench.lane.check_stream(9 * SECOND) == []
    assert bench.lane.check_stream(10 * SECOND) != []


def test_packets_of_a_lost_connection_wait_for_a_confirmation() -> None:
    bench = Bench().proven()
    bench.give(1)
    bench.sent(20 * MS)
    bench.lane.on_gone(1)
    assert (bench.lane.stream, bench.lane.held_bytes > 0) == (None, True)
    assert bench.lane.poll_stream(20 * MS) is None
    bench.lane.confirm(2, 30 * MS)
    assert (bench.outbox.freed, bench.lane.stream_due_us) == (1, None)


def test_a_lane_with_a_piece_is_not_streamed() -> None:
    outbox = MemoryOutbox([data_frame(1, 5000)])
    lane = ServedLane(0, outbox, list, LIMITS)
    push = Exchange(bytes(16), 1, 1, 0, 1, 0, 0, 4096)
    lane.receive(push, 1, 0)
    piece = lane.answer(0)
    assert piece is not None
    assert piece.answer.piece
    pull = Exchange(bytes(16), 1, 1, 0, 2, 1, 1000, 1 << 26, pull=True, stream=True)
    lane.receive(pull, 2, 0)
    answer = lane.answer(0)
    assert answer is not None
    assert (answer.answer.piece, answer.answer.goes_on) == (True, False)


def test_the_number_of_unconfirmed_packets_is_limited_however_small_they_are() -> None:
    bench = Bench(limits=replace(LIMITS, stream_packets_max=4)).proven()
    bench.give(*range(1, 8))
    assert bench.sent(20 * MS) == [[1, 2, 3, 4]]
    window_bytes = bench.window.window_bytes
    bench.lane.confirm(2, 40 * MS)
    assert bench.sent(40 * MS) == [[5, 6, 7]]
    bench.give(8, 9)
    assert bench.sent(40 * MS) == [[8]]
    bench.lane.confirm(4, 60 * MS)
    assert bench.sent(60 * MS) == [[9]]
    assert bench.window.window_bytes == window_bytes  # unchanged, because the window was not the limit


def test_a_relay_without_streams_answers_completely() -> None:
    limits = ServedLimits(lanes=2, streams=False)
    lane = ServedLane(0, MemoryOutbox([data_frame(1)]), list, limits)
    lane.receive(Exchange(bytes(16), 1, 1, 0, 1, 0, 1000, 1 << 20, pull=True, stream=True), 1, 0)
    answer = lane.answer(0)
    assert answer is not None
    assert (answer.answer.goes_on, names(answer)) == (False, [1])


def test_closing_the_lane_ends_the_stream_and_puts_everything_back() -> None:
    bench = Bench().proven()
    bench.give(1, 2)
    bench.sent(20 * MS)
    (end,) = bench.lane.close()
    assert end.is_cut
    assert [frame.sequence for frame in bench.outbox.frames] == [1, 2]
    assert bench.lane.finish_stream(0) is None
