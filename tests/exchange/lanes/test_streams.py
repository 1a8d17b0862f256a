"""Streamed answers from end to end: the lanes of an endpoint, a relay, and paths of many kinds (PROTOCOL 7.20)."""

import gc
from random import Random

import pytest

from tests.exchange.loop import Fate, Loop, Relay, data_frame, data_packet
from tunnel.exchange import LaneConfig, Request, Streams, StreamState
from tunnel.exchange.config import KIB, MIB, SECOND_US
from tunnel.exchange.envelope_stream import EnvelopeStream

EAGER = LaneConfig(stream_after_us=0)
MS = 1000


def streaming(loop: Loop) -> Streams:
    assert loop.lanes.streams is not None
    return loop.lanes.streams


def make_loop(config: LaneConfig = EAGER, *, lanes: int = 8, **settings: object) -> Loop:
    relay = Relay(Random(2), lanes, streams=True, hold_ms_max=60_000)
    return Loop(config=config, relay=relay, streams=True, **settings)  # type: ignore[arg-type]


def started(loop: Loop) -> Loop:
    loop.until(lambda: streaming(loop).is_streaming, loop.now + SECOND_US)
    return loop


def requests_between(loop: Loop, from_us: int) -> list[Request]:
    return [request for time_us, request in loop.requests if time_us >= from_us]


def test_a_stream_is_proven_within_four_round_trips_and_replaces_pulls() -> None:
    loop = started(make_loop())
    assert loop.now <= 80 * MS  # for ATTACH, the stream, its confirmation, and one to spare
    assert streaming(loop).road is StreamState.USED
    loop.run(loop.now + 50 * MS)
    assert loop.in_flight(pull=True) == 0, "the held pull was answered, and none follows"
    loop.relay.give([data_frame(name) for name in range(1, 4)], loop.now)
    before = len(loop.requests)
    loop.run(loop.now + 10 * MS)
    assert loop.delivered == [1, 2, 3]
    assert len(loop.requests) == before, "the packets needed no request"


def test_packets_are_freed_by_a_confirmation_that_waits_at_most_300_ms() -> None:
    loop = started(make_loop())
    loop.run(loop.now + 100 * MS)
    loop.relay.give([data_frame(1)], loop.now)
    given_us = loop.now
    loop.until(lambda: loop.relay.outbox.freed == 1, loop.now + SECOND_US)
    assert loop.now - given_us == pytest.approx(300 * MS + 20 * MS, abs=3 * MS)
    assert [request.pull for request in requests_between(loop, given_us)] == [False]


def test_a_push_carries_the_confirmation() -> None:
    loop = started(make_loop())
    loop.relay.give([data_frame(1)], loop.now)
    loop.until(lambda: loop.delivered == [1], loop.now + SECOND_US)
    loop.queue.append(data_packet(9))
    loop.run(loop.now + 21 * MS)
    assert loop.relay.outbox.freed == 1
    assert loop.relay.received[-1][1] == 9


def test_an_endpoint_that_moves_little_tries_only_after_two_seconds() -> None:
    loop = make_loop(LaneConfig())
    loop.run(1900 * MS)
    assert streaming(loop).road is StreamState.UNKNOWN
    loop.run(2300 * MS)
    assert streaming(loop).road is StreamState.USED


def test_an_endpoint_that_moves_much_tries_at_once() -> None:
    loop = make_loop(LaneConfig())
    loop.relay.give([data_frame(name, 4000) for name in range(1, 100)])
    loop.run(500 * MS)
    assert streaming(loop).road is StreamState.USED


def test_all_packets_arrive_once_and_in_order_while_streams_follow_each_other() -> None:
    loop = started(make_loop(LaneConfig(stream_after_us=0, stream_us=4 * SECOND_US)))
    for turn in range(300):
        loop.relay.give([data_frame(3 * turn + index, 500) for index in range(3)], loop.now)
        loop.run(loop.now + 100 * MS)
    loop.run(loop.now + SECOND_US)
    assert loop.delivered == list(range(900))
    streams = [request for _, request in loop.requests if request.stream]
    assert 9 <= len(streams) <= 12, "one for each 3 s"
    assert loop.in_flight(pull=True) == 0
    assert streaming(loop).road is StreamState.USED


def test_an_idle_stream_costs_less_than_a_request_per_ten_seconds() -> None:
    loop = started(make_loop())
    loop.run(loop.now + 10 * SECOND_US)
    before = len(loop.requests)
    loop.run(loop.now + 120 * SECOND_US)
    assert len(loop.requests) - before <= 8
    assert streaming(loop).is_streaming


# paths that do not let streams pass


def test_a_path_that_holds_answers_back_costs_no_packet_and_no_time() -> None:
    loop = make_loop(fate=lambda request, now: Fate(buffered=request.stream))
    for turn in range(100):
        loop.relay.give([data_frame(turn)], loop.now)
        loop.run(loop.now + 60 * MS)
        assert loop.delivered[-1] == turn
        loop.run(loop.now + 50 * MS)
    assert loop.delivered == list(range(100))
    assert streaming(loop).road is StreamState.RESTING
    assert not streaming(loop).is_streaming
    streams = {(request.lane, request.number) for _, request in loop.requests if request.stream}
    assert 2 <= len(streams) <= 4, "tried again with exponential backoff"


def test_a_stream_that_dies_in_silence_costs_two_seconds_and_no_packet() -> None:
    # The headers and first envelopes pass, then nothing.
    loop = make_loop(fate=lambda request, now: Fate(stream_bytes=2000 if request.stream else -1))
    started(loop)
    loop.relay.give([data_frame(name, 1000) for name in range(10)], loop.now)
    given_us = loop.now
    loop.until(lambda: len(set(loop.delivered)) == 10, loop.now + 4 * SECOND_US)
    assert loop.now - given_us <= 2_500 * MS
    assert sorted(set(loop.delivered)) == list(range(10))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 40, 90, 100, 500, 1200, 5000, 20_000])
def test_a_stream_that_is_cut_at_any_byte_loses_nothing(size: int) -> None:
    loop = make_loop(fate=lambda request, now: Fate(stream_bytes=size if request.stream else -1, reported=True))
    for turn in range(60):
        loop.relay.give([data_frame(turn, 700)], loop.now)
        loop.run(loop.now + 50 * MS)
    loop.run(loop.now + 2 * SECOND_US)
    assert sorted(set(loop.delivered)) == list(range(60))


def test_a_pull_whose_first_envelope_is_lost_is_repeated_after_the_deadline_of_a_push() -> None:
    loop = make_loop(fate=lambda request, now: Fate(response_lost=request.stream and not request.repeat))
    loop.run(3 * SECOND_US)
    first = next(request for _, request in loop.requests if request.stream)
    repeats = [request for _, request in loop.requests if (request.lane, request.number) == (first.lane, first.number)]
    assert [request.repeat for request in repeats] == [0, 1]
    assert streaming(loop).road is StreamState.RESTING


def test_no_stream_takes_the_last_lane() -> None:
    loop = make_loop(LaneConfig(stream_after_us=0, lanes_max=2))
    loop.run(5 * SECOND_US)
    assert not any(request.stream for _, request in loop.requests)


def test_a_relay_that_does_not_announce_streams_is_asked_for_none() -> None:
    loop = Loop(config=EAGER, streams=True)
    loop.run(5 * SECOND_US)
    assert not any(request.stream for _, request in loop.requests)


def test_a_stream_survives_a_late_copy_of_any_request() -> None:
    loop = started(make_loop(fate=lambda request, now: Fate(copies=(200 * MS, 3 * SECOND_US))))
    for turn in range(100):
        loop.relay.give([data_frame(turn, 300)], loop.now)
        loop.queue.append(data_packet(turn))
        loop.run(loop.now + 50 * MS)
    loop.run(loop.now + 5 * SECOND_US)
    assert sorted(set(loop.delivered)) == list(range(100))


def test_a_relay_that_returns_gets_its_stream_back() -> None:
    loop = started(make_loop())
    loop.relay.restart()
    loop.run(loop.now + 6 * SECOND_US)
    assert streaming(loop).is_streaming
    loop.relay.give([data_frame(5)], loop.now)
    loop.run(loop.now + 20 * MS)
    assert loop.delivered == [5]


def test_a_link_ends_the_stream_and_what_had_come_is_confirmed() -> None:
    loop = started(make_loop())
    loop.run(loop.now + 100 * MS)
    loop.relay.give([data_frame(1)], loop.now)
    loop.run(loop.now + 15 * MS)
    loop.lanes.set_pulling(False, loop.now)
    loop.run(loop.now + 50 * MS)
    assert (loop.delivered, loop.relay.outbox.freed) == ([1], 1)
    assert not streaming(loop).is_streaming
    assert not loop.relay.streams
    loop.lanes.set_pulling(True, loop.now)
    loop.run(loop.now + SECOND_US)
    assert streaming(loop).is_streaming


class Download:
    """Packets of 16 KiB for the endpoint, of which enough always wait at the relay."""

    def __init__(self, loop: Loop) -> None:
        self.loop = started(loop)
        self._names = 0

    def run(self, duration_us: int) -> float:
        """Run for this time. Return the bytes per second that came."""
        loop, size = self.loop, 16 * KIB
        end_us, before = loop.now + duration_us, len(loop.delivered)
        while loop.now < end_us:
            if len(loop.relay.outbox.frames) * size < 8 * MIB:
                new = range(self._names, self._names + 512)
                loop.relay.give([data_frame(name, size) for name in new], loop.now)
                self._names = new.stop
            loop.run(loop.now + 20 * MS)
        return (len(loop.delivered) - before) * size * SECOND_US / duration_us


def test_a_long_path_soon_gets_a_window_that_fills_it() -> None:
    # 100 ms of round trip at 50 MB/s: 5 MB are on their way.
    download = Download(make_loop(one_way_us=50 * MS, bytes_per_second=50_000_000))
    assert download.run(SECOND_US) > 0.5 * 50_000_000
    assert download.run(3 * SECOND_US) > 0.75 * 50_000_000


@pytest.mark.parametrize("queue_us", [700 * MS, 1_500 * MS])
def test_a_queue_of_others_does_not_take_the_path_away_from_a_stream(queue_us: int) -> None:
    download = Download(make_loop(one_way_us=25 * MS, bytes_per_second=1_000_000))
    download.run(10 * SECOND_US)
    download.loop.queue_us = queue_us
    download.run(10 * SECOND_US)
    assert download.run(100 * SECOND_US) > 0.9 * 1_000_000


def test_what_waits_on_a_slow_path_waits_for_two_seconds() -> None:
    download = Download(make_loop(one_way_us=25 * MS, bytes_per_second=64 * KIB))
    download.run(30 * SECOND_US)
    assert download.loop.relay.window.window_bytes == pytest.approx(128 * KIB, rel=0.05)


def test_a_stream_whose_packets_now_and_then_wait_behind_others_is_not_given_up() -> None:
    """Each packet takes 1.5 s, and the least time was 20 ms."""
    loop = started(make_loop())
    loop.queue_us = 1_500 * MS
    loop.run(loop.now + SECOND_US)
    loop.relay.give([data_frame(1)], loop.now)  # how long a confirmation takes is not known yet
    loop.run(loop.now + 20 * SECOND_US)
    before = len([request for request in requests_between(loop, 0) if request.stream])
    for name in range(2, 7):
        loop.relay.give([data_frame(name)], loop.now)
        loop.run(loop.now + 5 * SECOND_US)
    assert len([request for request in requests_between(loop, 0) if request.stream]) == before
    assert sorted(set(loop.delivered)) == list(range(1, 7))


@pytest.mark.parametrize("rest", ["lost", "answered"])
def test_unfinished_answers_that_are_given_up_leave_nothing_behind(rest: str) -> None:
    """A hostile path begins each streamed answer with an envelope that it never ends."""
    beginning = b"TUNL\x01\x02\x00\x00" + (1 << 20).to_bytes(4, "big") + bytes(1000)

    def fate(request: Request, now: int) -> Fate:
        return Fate(response_lost=request.stream and (rest == "lost" or not request.repeat))

    loop = make_loop(fate=fate)
    lanes, begun = loop.lanes, set[int]()
    gc.collect()
    before = bodies()
    for _ in range(600):
        loop.run(loop.now + SECOND_US)
        for _, request in loop.requests:
            if request.stream and request.id not in begun and fate(request, 0).response_lost:
                begun.add(request.id)
                lanes.on_received(request.id, beginning, loop.now)
    assert len(begun) > 3
    lanes.set_pulling(False, loop.now)
    loop.run(loop.now + SECOND_US)
    gc.collect()
    open_ = sum(request_id in lanes._attempts for request_id in begun)
    assert bodies() - before <= open_


def bodies() -> int:
    return sum(isinstance(each, EnvelopeStream) for each in gc.get_objects())


# where one HTTP connection is slower than several


def test_no_stream_is_used_while_streams_are_not_wanted() -> None:
    loop = started(make_loop())
    loop.relay.give([data_frame(1)], loop.now)
    streaming(loop).allow(False, loop.now)
    assert not streaming(loop).is_streaming
    asked_us = loop.now
    loop.relay.give([data_frame(2)], loop.now)
    loop.run(loop.now + 10 * SECOND_US)
    assert sorted(set(loop.delivered)) == [1, 2]
    assert not [request for request in requests_between(loop, asked_us) if request.stream]
    streaming(loop).allow(True, loop.now)
    started(loop)
    assert streaming(loop).is_streaming


def test_a_stream_that_was_asked_for_earlier_is_not_used() -> None:
    loop = make_loop()
    loop.until(lambda: any(request.stream for _, request in loop.requests), SECOND_US)
    streaming(loop).allow(False, loop.now)
    loop.run(loop.now + SECOND_US)
    assert not streaming(loop).is_streaming
    loop.relay.give([data_frame(1)], loop.now)
    loop.run(loop.now + SECOND_US)
    assert set(loop.delivered) == {1}


@pytest.mark.parametrize("streams", [True, False])
def test_the_bytes_that_exchanges_carry_are_counted_in_each_direction(streams: bool) -> None:
    loop = make_loop()
    streaming(loop).allow(streams, loop.now)
    loop.run(SECOND_US)
    carried = streaming(loop).carried
    before = carried.up_bytes, carried.down_bytes
    loop.relay.give([data_frame(name, 1000) for name in range(5)], loop.now)
    loop.run(loop.now + SECOND_US)
    assert 5000 <= carried.down_bytes - before[1] <= 7000
    assert carried.up_bytes - before[0] <= 2000
    before = carried.up_bytes, carried.down_bytes
    loop.queue.extend([data_packet(9, 1000)] * 5)
    loop.run(loop.now + SECOND_US)
    assert 5000 <= carried.up_bytes - before[0] <= 7000
    assert carried.down_bytes - before[1] <= 2000
