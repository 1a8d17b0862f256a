"""More of the switch: what a bad request is told, and its limits to the byte."""

import pytest

from tests.servlet.support import Peer, Relay, bound, data, listen_state, of_kind
from tunnel.wire import (
    USER_BYTES_MAX,
    Answer,
    Attach,
    PacketType,
    Status,
    StatusCode,
    decode_envelope,
    decode_listen_state,
    encode_envelope,
    whole_packet,
)


def told(relay: Relay, body: bytes, user: str = "ann") -> Status:
    message = decode_envelope(b"".join(relay.responses[relay.post(user, body)].body))
    assert isinstance(message, Status)
    return message


def test_what_a_bad_request_is_told() -> None:
    relay = Relay(body_bytes_max=1000)
    found = told(relay, bytes(1001))
    assert (found.code, found.text) == (StatusCode.TOO_LARGE, "at most 1000 bytes")
    found = told(relay, b"".join(encode_envelope(Answer(0, 1, 1))))
    assert (found.code, found.text) == (StatusCode.MALFORMED, "not a request")
    found = told(relay, bytes(1000))  # as large as allowed, and something else
    assert found.code is not StatusCode.TOO_LARGE
    assert found.text


def test_every_request_counts() -> None:
    relay = Relay()
    for _ in range(3):
        relay.post("ann", b"?")
    assert relay.counters.requests == 3


@pytest.mark.parametrize(("length", "taken"), [(USER_BYTES_MAX, True), (USER_BYTES_MAX + 1, False)])
def test_the_name_of_a_user_has_a_largest_length(length: int, taken: bool) -> None:
    relay = Relay()
    if taken:
        Peer(relay, user="u" * length).attached()
    else:
        with pytest.raises(ValueError, match="user"):
            relay.post("u" * length, b"?")


def test_an_epoch_has_64_bits() -> None:  # 6.3
    assert all(Peer(Relay()).attached().epoch < 2**64 for _ in range(3))


def test_every_packet_that_is_sent_counts() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    before = relay.counters.packets_sent
    for number in range(3):
        client.push(data(11, 22, 101 + number))
        exit_.push()
    assert relay.counters.packets_sent == before + 3


def test_an_exchange_that_cannot_be_is_told_why() -> None:
    relay = Relay(lanes_max=2)
    client = Peer(relay).attached()
    found = client.status(client.send(lane=2))
    assert (found.code, found.text) == (StatusCode.MALFORMED, "lanes are numbered from 0 to 1")
    small = Relay(mailbox_bytes_max=64 << 10)
    client = Peer(small).attached()
    found = client.status(client.send(piece=True, payload=[bytes(70 << 10)]))
    assert (found.code, found.text) == (StatusCode.BUSY, "no room for a part of a packet")


def test_every_refusal_and_every_damaged_packet_counts() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    for _ in range(2):
        relay.post("ann", b"?")
        client.answer(client.send(payload=[b"x" * 30]))
    assert (relay.counters.refusals, relay.counters.packets_damaged) == (2, 2)
    client.answer(client.send(payload=[whole_packet(data(1, 2, 3))[:-1]]))
    assert relay.counters.packets_damaged == 3


def test_a_refused_listener_has_no_backlog() -> None:  # 2.8
    relay = Relay(may_listen=lambda user, name: name != "no", names_per_attachment_max=1)
    client = Peer(relay).attached()
    found = client.push(listen_state("no"), listen_state("yes"), listen_state("more"))
    states = [decode_listen_state(packet.payload) for packet in of_kind(found, PacketType.LISTEN_STATE)]
    said = [(state.name, state.backlog) for state in states if state is not None]
    assert said == [("no", 0), ("yes", 0), ("more", 0)]


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
    for _ in range(2):
        relay.switch.link_packets(1, [], relay.now)  # it is alive, and something waits for it
        relay.settle()
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


def test_nobody_is_an_exit_who_does_not_say_so() -> None:
    relay = Relay()
    body = b"".join(encode_envelope(Attach(bytes(32), 1, 0, 1 << 20)))
    relay.switch.request(1, "ann", body, relay.now)
    assert (relay.switch.stats().attachments, relay.switch.stats().exits) == (1, 0)
