"""The limits of packets in one body and in one answer: no user costs the relay more than that at once (4.13)."""

import pytest

from tests.servlet.queues import KIB, Box, put, put_control, sequences
from tests.servlet.support import Peer, Relay, bind, bound, control, data, kinds, of_kind
from tunnel.wire import Attached, PacketType, StatusCode, frame_of

MOST = 256
TOO_MANY = [data(11, 22, 101 + number, b"") for number in range(MOST + 1)]


def test_4_13_two_users_a_body_with_more_packets_than_announced_is_refused_whole() -> None:
    relay = Relay(packets_per_body_max=MOST)
    client, exit_ = bound(relay)
    found = client.status(client.send(*TOO_MANY))
    assert (found.code, found.text) == (StatusCode.TOO_LARGE, "the body holds more than 256 packets")
    assert exit_.push() == []
    assert relay.counters.bodies_too_full == 1
    client.push(*TOO_MANY[:-1])  # in the next request of the lane
    assert len(exit_.push()) == MOST


def test_4_13_the_largest_number_of_packets_in_a_body_is_announced() -> None:
    answer = Peer(Relay(packets_per_body_max=MOST)).attach()
    assert isinstance(answer, Attached)
    assert answer.packets_max == MOST


def test_4_13_large_payloads_and_damaged_bytes_do_not_count_as_packets() -> None:
    relay = Relay(packets_per_body_max=MOST)
    client, exit_ = bound(relay)
    client.push(*(data(11, 22, 101 + number, bytes(5_000)) for number in range(20)))
    assert len(of_kind(exit_.push(), PacketType.DATA)) == 20
    client.answer(client.send(payload=[b"x" * 100_000]))
    assert relay.counters.packets_damaged == 1


def test_4_13_an_answer_with_the_most_packets_says_that_more_wait() -> None:
    relay = Relay(packets_per_answer_max=MOST)
    client, exit_ = bound(relay)
    bind(client, exit_, 12, 23)
    for start in (0, 200):
        client.push(*(data(11, 22, 101 + start + number, b"") for number in range(200)))
    client.push(*(control(PacketType.PING, 12, 23, bytes(4)) for _ in range(8)))
    found = [exit_.answer(exit_.send()) for _ in range(3)]
    assert [answer.more for answer in found] == [True, False, False]


def test_4_13_control_packets_leave_half_of_an_answer_to_streams() -> None:
    box = Box(bytes_max=8192 * KIB, packets_per_answer_max=MOST)
    for number in range(300):
        put_control(box, box.queue(101 + number), control(PacketType.ACK, 1, 101 + number))
    busy = box.queue(1)
    put(box, busy, *(data(2, 1, 101 + number) for number in range(200)))
    found = box.take()
    assert (len(found), kinds(found).count("ACK")) == (MOST, MOST // 2)
    rest = box.take()
    assert kinds(rest).count("ACK") == MOST // 2
    assert sequences([packet for packet in found + rest if packet.type == PacketType.DATA]) == [*range(101, 301)]


def test_4_13_openings_and_notices_count_too() -> None:
    box = Box(packets_per_answer_max=MOST, general_packets_max=1000)
    for number in range(200):
        box.mailbox.notice(number, 1)
        box.mailbox.post(("rejected", number), frame_of(control(PacketType.REJECTED, number, 0)))
    assert [len(box.take()) for _ in range(3)] == [MOST, 400 - MOST, 0]


@pytest.mark.parametrize("number", [255, 65_536])
def test_4_13_a_limit_that_cannot_be_announced_or_obeyed_is_an_error(number: int) -> None:
    with pytest.raises(ValueError, match="packets_per_body_max must be at least 256 and at most 65535"):
        Relay(packets_per_body_max=number)
