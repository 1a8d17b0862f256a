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
    client.push()
    assert relay.switch.stats().bytes_outstanding == 0


def test_a_link_that_owes_as_many_receipts_as_it_may_gets_no_more() -> None:  # 8.2
    relay = Relay(unreceipted_bytes_max=124)
    client, exit_ = bound(relay)
    assert relay.switch.link_opened(1, client.user, client.identity, client.epoch, 1, relay.now)
    exit_.push(data(22, 11, 501, bytes(100)))
    relay.settle()
    assert relay.links_ready == [1]
    assert len(relay.switch.poll_link(1, 10_000, relay.now)) == 1
    for sequence in (502, 503):
        exit_.push(data(22, 11, sequence, bytes(100)))
    assert relay.links_ready == [1]
    assert relay.switch.poll_link(1, 10_000, relay.now) == []
    relay.switch.link_receipted(1, 1, relay.now)
    relay.settle()
    assert relay.links_ready == [1, 1]
    assert len(relay.switch.poll_link(1, 10_000, relay.now)) == 2


def test_a_link_is_asked_for_once_until_it_is_polled() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    assert relay.switch.link_opened(1, client.user, client.identity, client.epoch, 1, relay.now)
    for sequence in (501, 502, 503):
        exit_.push(data(22, 11, sequence))
    assert relay.links_ready == [1]
    assert len(relay.switch.poll_link(1, 10_000, relay.now)) == 3


def test_a_push_casts_no_doubt_on_a_silent_link() -> None:  # 8.2: only who pulls has no other way
    relay = Relay()
    client, exit_ = bound(relay)
    assert relay.switch.link_opened(1, client.user, client.identity, client.epoch, 1, relay.now)
    exit_.push(data(22, 11, 501))
    relay.switch.poll_link(1, 10_000, relay.now)
    relay.advance(5_000_000)
    client.push()
    exit_.push(data(22, 11, 502))
    assert relay.links_ready == [1, 1]
