"""More of attachments: what an endpoint asks for and gets, and what is held for it."""

from tests.servlet.support import Peer, Relay, bound, data, of_kind
from tunnel.wire import ANSWER_BYTES, EVIDENCE_BYTES, Attached, PacketType, whole_packet


def test_the_pull_interval_is_in_milliseconds() -> None:  # 7.11
    answer = Peer(Relay()).attach(pull_interval_ms=3000)
    assert isinstance(answer, Attached)
    assert answer.pull_interval_ms == 3000


def test_answers_are_no_larger_than_the_endpoint_takes() -> None:  # 6.1
    relay = Relay()
    client, exit_ = bound(relay)
    client.attach(generation=2, body_bytes_max=4096)
    exit_.push(*(data(22, 11, 501 + number, bytes(1000)) for number in range(10)))
    assert len(of_kind(client.push(), PacketType.DATA)) == 3


def test_a_packet_in_pieces_is_no_larger_than_others() -> None:  # 7.6
    relay = Relay(packet_bytes_max=1000)
    client, _ = bound(relay)
    packet = whole_packet(data(11, 22, 101, bytes(2000)))
    client.answer(client.send(piece=True, payload=[packet[:500]]))
    assert relay.counters.packets_damaged == 1


def test_what_just_fits_an_answer_is_confirmed_by_the_next_request() -> None:  # 7.3
    relay = Relay()
    client, exit_ = bound(relay)
    packet = data(22, 11, 501, bytes(100))
    exit_.push(packet)
    limit = 124 + ANSWER_BYTES + EVIDENCE_BYTES * relay.config.lanes_max
    assert len(client.packets(client.send(answer_bytes_max=limit))) == 1
    assert relay.switch.stats().bytes_outstanding > 0
    client.pull()
    assert relay.switch.stats().bytes_outstanding == 0


def test_a_packet_that_leaves_in_pieces_is_held_once() -> None:  # 7.6
    relay = Relay()
    client, exit_ = bound(relay)
    exit_.push(data(22, 11, 501, bytes(5000)))
    held = relay.switch.stats().bytes_held
    for _ in range(2):
        client.answer(client.send(answer_bytes_max=2000))
        assert relay.switch.stats().bytes_held == held
