"""More of the endpoint's half of the lanes: errors for misuse, events about the path, idle lanes and due times."""

from random import Random

import pytest

from tests.exchange.loop import SECRET, Fate, data_packet
from tests.exchange.rig import MS, SECOND, STEADY, attached_loop, encoded
from tunnel.exchange import BatchDone, LaneConfig, Lanes, PacketsReceived, Request, Troubled
from tunnel.wire import Answer, Attached, Discarded, Exchange, attachment_id, decode_envelope

ATTACHED = Attached(attachment_id(SECRET), 9, 1, True, 1 << 20, 1 << 20, 15_000, 0, 65536, 8)


def exchange_of(request: Request) -> Exchange:
    message = decode_envelope(b"".join(request.body))
    assert isinstance(message, Exchange)
    return message


def attached(config: LaneConfig = STEADY, now: int = 0) -> Lanes:
    """Return lanes that attached after 20 ms and do not pull."""
    lanes = Lanes(config, SECRET, Random(1))
    lanes.set_pulling(False, 0)
    request = lanes.poll_request(now)
    assert request is not None
    lanes.on_answered(request.id, 200, encoded(ATTACHED), 0, now + 20 * MS)
    while lanes.poll_event() is not None:
        pass
    return lanes


def test_misuse_raises_and_says_what_to_do() -> None:
    lanes = attached()
    with pytest.raises(ValueError, match=r"^the batch is empty: push at least one packet$"):
        lanes.push([], 1, 0)
    for token in range(lanes.lane_count):
        lanes.push([data_packet(1)], token, 0)
    with pytest.raises(ValueError, match=r"^no lane is free: push only while room\(\) is not 0$"):
        lanes.push([data_packet(1)], 9, 0)


@pytest.mark.parametrize(("beyond", "piece"), [(0, False), (1, True)])
def test_a_packet_that_fits_to_the_byte_is_not_cut(beyond: int, piece: bool) -> None:  # 7.6
    lanes = attached()
    lanes.push([data_packet(1, lanes.room(0) - 24 + beyond)], 1, 20 * MS)
    request = lanes.poll_request(20 * MS)
    assert request is not None
    assert exchange_of(request).piece is piece


def test_the_attach_is_the_first_measurement_of_the_path() -> None:
    assert attached(now=5 * SECOND).path.round_trip.srtt_us == 20 * MS


def test_a_connection_that_failed_is_named_in_the_trouble() -> None:
    loop = attached_loop(packets=1)
    loop.lanes.set_pulling(False, loop.now)
    loop.fate = lambda request, now: Fate(request_lost=True, reported=True)
    loop.run(10 * SECOND)
    told = {event.last for _, event in loop.events if isinstance(event, Troubled)}
    assert told == {"the HTTP connection failed"}


def test_discarded_bytes_of_an_answer_are_reported() -> None:
    lanes = attached()
    lanes.push([data_packet(1)], 7, 20 * MS)
    request = lanes.poll_request(20 * MS)
    assert request is not None
    answer = Answer(request.lane, request.number, 1, payload=b"x" * 30)
    lanes.on_answered(request.id, 200, encoded(answer), 0, 30 * MS)
    assert lanes.poll_event() == BatchDone(7, ok=True)
    event = lanes.poll_event()
    assert isinstance(event, PacketsReceived)
    assert isinstance(event.discarded, Discarded)


# lanes that are given back


def with_three(*used_us: int) -> Lanes:
    """Return two lanes and one that was added, last used at these times."""
    lanes = attached(LaneConfig())
    lanes.path.lanes.count = 3
    for lane, time_us in zip(lanes._set.lanes, used_us, strict=False):
        lane.used_us = time_us
    return lanes


def test_the_highest_lane_is_given_back_after_a_long_idle_time() -> None:
    lanes = with_three(100 * SECOND, 100 * SECOND, SECOND)
    assert lanes.next_timeout() == 6 * SECOND
    lanes.handle_timeout(6 * SECOND)
    assert lanes.lane_count == 2


def test_a_lane_with_an_answer_to_confirm_is_kept() -> None:
    lanes = with_three()
    lanes._set.lanes[2].owes = True
    assert lanes.next_timeout() is None


def test_a_lane_that_was_just_added_is_not_given_back_at_once() -> None:
    lanes = attached(LaneConfig(body_bytes_start=16 << 10, body_bytes_max=16 << 10))
    start_us = 100 * SECOND
    lanes.push([data_packet(1, lanes.room(start_us) - 24)], 1, start_us)
    request = lanes.poll_request(start_us)
    assert request is not None
    lanes.on_answered(request.id, 200, encoded(Answer(request.lane, request.number, 1)), 0, start_us + 20 * MS)
    assert lanes.lane_count == 3
    assert lanes.next_timeout() == start_us + 20 * MS + 5 * SECOND


def test_after_413_a_lane_counts_as_one_with_an_answer_to_confirm() -> None:  # the relay may have sent packets
    lanes = attached()
    requests = []
    for token in (1, 2):
        lanes.push([data_packet(token, 40_000)], token, 20 * MS)
        request = lanes.poll_request(20 * MS)
        assert request is not None
        requests.append(request)
    lanes.on_answered(requests[1].id, 413, b"", 0, 30 * MS)
    lanes.on_answered(requests[0].id, 200, encoded(Answer(requests[0].lane, 1, 1)), 0, 30 * MS)
    lanes.push([data_packet(3)], 3, 30 * MS)
    request = lanes.poll_request(30 * MS)
    assert request is not None
    assert request.lane == requests[1].lane != requests[0].lane


# what is due


def at_rest() -> Lanes:
    """Return lanes that attached at 20 ms and have nothing to send: nothing is due."""
    lanes = attached()
    assert (lanes.poll_request(20 * MS), lanes.next_timeout()) == (None, None)
    return lanes


def test_a_push_is_due_at_once() -> None:
    lanes = at_rest()
    lanes.push([data_packet(1)], 1, 25 * MS)
    assert lanes.next_timeout() == 25 * MS


def test_a_failed_push_is_due_when_it_is_to_be_repeated() -> None:
    lanes = at_rest()
    lanes.push([data_packet(1)], 1, 25 * MS)
    request = lanes.poll_request(25 * MS)
    assert request is not None
    assert lanes.poll_request(25 * MS) is None
    lanes.on_failed(request.id, 40 * MS)
    assert lanes.next_timeout() == 40 * MS


def test_a_new_pull_interval_makes_nothing_due_while_pulling_is_off() -> None:
    lanes = at_rest()
    lanes.set_pull_interval(SECOND, wanted_us=SECOND)
    assert lanes.next_timeout() is None


def test_attaching_again_is_due_at_the_next_timeout() -> None:
    lanes = at_rest()
    lanes._exchanges.attach_again()
    due_us = lanes.next_timeout()
    assert due_us is not None
    assert lanes.poll_request(due_us - 1) is None
    assert lanes.poll_request(due_us) is not None
