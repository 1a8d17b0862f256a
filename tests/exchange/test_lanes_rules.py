"""More of the dialing half: what its caller does wrong, and what it says of the path."""

from random import Random

import pytest

from tests.exchange.loop import SECRET, Fate, data_packet
from tests.exchange.test_lanes import MS, SECOND, STEADY, attached_loop, encoded, pushes
from tunnel.exchange import BatchDone, Lanes, PacketsReceived, Request, Troubled
from tunnel.wire import Answer, Attached, Discarded, Exchange, attachment_id, decode_envelope

ATTACHED = Attached(attachment_id(SECRET), 9, 1, True, 1 << 20, 1 << 20, 15_000, 0, 65536, 8)


def exchange_of(request: Request) -> Exchange:
    message = decode_envelope(b"".join(request.body))
    assert isinstance(message, Exchange)
    return message


def attached(now: int = 0) -> Lanes:
    """Attached after 20 ms, and pulling nothing."""
    lanes = Lanes(STEADY, SECRET, Random(1))
    lanes.set_pulling(False)
    request = lanes.poll_request(now)
    assert request is not None
    lanes.answered(request.id, 200, encoded(ATTACHED), 0, now + 20 * MS)
    while lanes.poll_event() is not None:
        pass
    return lanes


def test_who_misuses_it_is_told_how() -> None:
    lanes = attached()
    with pytest.raises(ValueError, match=r"^a batch has at least one packet$"):
        lanes.push([], 1, 0)
    for token in range(lanes.lane_count):
        lanes.push([data_packet(1)], token, 0)
    with pytest.raises(ValueError, match=r"^no lane is free: push only while room\(\) is not 0$"):
        lanes.push([data_packet(1)], 9, 0)


@pytest.mark.parametrize(("beyond", "piece"), [(0, False), (1, True)])
def test_what_fits_to_the_byte_is_not_cut(beyond: int, piece: bool) -> None:  # 7.6
    lanes = attached()
    lanes.push([data_packet(1, lanes.room(0) - 24 + beyond)], 1, 20 * MS)
    request = lanes.poll_request(20 * MS)
    assert request is not None
    assert exchange_of(request).piece is piece


def test_the_attach_is_the_first_measurement_of_the_path() -> None:
    assert attached(now=5 * SECOND).srtt_us == 20 * MS


def test_a_connection_that_failed_is_named_in_the_trouble() -> None:
    loop = attached_loop(packets=1)
    loop.lanes.set_pulling(False)
    loop.fate = pushes(*[Fate(request_lost=True, reported=True)] * 3)
    loop.run(10 * SECOND)
    assert loop.told(Troubled) == [Troubled(3, "the connection failed")]


def test_what_was_thrown_away_of_an_answer_is_told() -> None:
    lanes = attached()
    lanes.push([data_packet(1)], 7, 20 * MS)
    request = lanes.poll_request(20 * MS)
    assert request is not None
    answer = Answer(request.lane, request.number, 1, payload=b"x" * 30)
    lanes.answered(request.id, 200, encoded(answer), 0, 30 * MS)
    assert lanes.poll_event() == BatchDone(7, ok=True)
    event = lanes.poll_event()
    assert isinstance(event, PacketsReceived)
    assert isinstance(event.discarded, Discarded)
