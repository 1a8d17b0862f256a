"""The endpoint's half of the lanes as a whole: when it pulls, and on how many lanes (PROTOCOL 7.15)."""

from itertools import pairwise
from random import Random

from tests.exchange.loop import Loop, Relay, data_frame, data_packet
from tunnel.exchange import Detached, LaneConfig, LanesChanged
from tunnel.wire import Attach, decode_envelope

KIB = 1024
MS = 1_000
SECOND = 1_000_000
STEADY = LaneConfig(adapt_lanes=False)


def attached_loop(config: LaneConfig = STEADY, relay: Relay | None = None) -> Loop:
    loop = Loop(config, relay=relay or Relay(Random(2)))
    loop.run(30 * MS)
    return loop


def received(loop: Loop) -> list[int]:
    return [name for _, name in loop.relay.received]


def test_one_pull_is_always_held() -> None:
    loop = attached_loop()
    for name in range(1, 20):
        assert loop.in_flight(pull=True) == 1
        loop.run(loop.now + 100 * MS)
        loop.relay.give([data_frame(name)])
        loop.run(loop.now + 10 * MS)
    assert loop.delivered == list(range(1, 20))
    assert loop.told(Detached) == []


def test_all_lanes_but_one_pull_while_more_waits() -> None:
    loop = attached_loop(LaneConfig(adapt_lanes=False, lanes_start=4))
    loop.relay.give([data_frame(name, 30_000) for name in range(100)])
    most = 0
    for _ in range(1000):
        loop.run(loop.now + MS)
        most = max(most, loop.in_flight(pull=True))
        assert loop.lanes.room(loop.now) > 0
    assert most == 3
    assert sorted(loop.delivered) == list(range(100))


def test_a_packet_in_pieces_is_pulled_within_a_few_round_trips() -> None:
    loop = attached_loop(LaneConfig(adapt_lanes=False, answer_bytes_max=16 * KIB, body_bytes_start=16 * KIB))
    loop.relay.give([data_frame(1, 60_000)])
    loop.run(loop.now + 200 * MS)
    assert loop.delivered == [1]


def test_with_one_http_connection_one_request_at_a_time_serves_both_directions() -> None:
    loop = attached_loop(LaneConfig(one_connection=True))
    loop.queue.append(data_packet(1))
    for name in range(1, 50):
        loop.run(loop.now + 100 * MS)
        assert loop.in_flight(pull=True) + loop.in_flight(pull=False) <= 1
        loop.relay.give([data_frame(name)])
    loop.run(loop.now + 2 * SECOND)
    assert loop.delivered == list(range(1, 50))
    assert received(loop) == [1]
    count = len(loop.requests)
    loop.run(loop.now + 60 * SECOND)
    assert len(loop.requests) - count < 65


def test_pulls_follow_the_interval_that_the_relay_settled() -> None:
    loop = attached_loop(LaneConfig(pull_interval_us=100 * MS), Relay(Random(2), pull_interval_ms=250))
    loop.run(2 * SECOND)
    times = [time_us for time_us, request in loop.requests if request.pull]
    assert {later - sooner for sooner, later in pairwise(times)} == {250 * MS}
    loop.lanes.set_pull_interval(500 * MS, wanted_us=500 * MS)
    loop.run(5 * SECOND)
    times = [time_us for time_us, request in loop.requests if request.pull and time_us > 2 * SECOND]
    assert {later - sooner for sooner, later in pairwise(times)} == {500 * MS}
    assert loop.told(LanesChanged)[-1] == LanesChanged(2, 500 * MS)


def test_the_next_attach_asks_for_the_interval_that_was_wanted_last() -> None:
    loop = attached_loop()
    loop.lanes.set_pull_interval(500 * MS, wanted_us=700 * MS)
    assert loop.lanes.pull_interval_us == 500 * MS
    loop.relay.restart()
    loop.run(loop.now + 5 * SECOND)
    asked = [decode_envelope(b"".join(request.body)) for _, request in loop.requests if request.lane < 0]
    assert [found.pull_interval_ms for found in asked if isinstance(found, Attach)] == [0, 700]


def test_nothing_is_pulled_while_pulling_is_off() -> None:
    loop = attached_loop()
    loop.lanes.set_pulling(False, loop.now)
    loop.run(60 * SECOND)
    count = len(loop.requests)
    loop.run(120 * SECOND)
    assert (len(loop.requests), loop.lanes.next_timeout()) == (count, None)


# lanes


def test_lanes_are_added_under_load_and_given_back_when_idle() -> None:
    loop = attached_loop(LaneConfig(body_bytes_max=64 * KIB))
    loop.queue.extend(data_packet(name, 30_000) for name in range(600))
    loop.run(2 * SECOND)
    assert loop.lanes.lane_count == 8
    assert sorted(received(loop)) == list(range(600))
    loop.run(60 * SECOND)
    assert loop.lanes.lane_count == 2
    told = [event.lanes for event in loop.told(LanesChanged) if isinstance(event, LanesChanged)]
    assert told == [2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 2]
