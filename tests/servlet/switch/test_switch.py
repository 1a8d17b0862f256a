"""The switch as its host sees it: requests, holds, links (PROTOCOL 7.3, 7.4, 7.10, 8)."""

from random import Random

import msgspec
import pytest

from tests.servlet.support import (
    MS,
    SECOND,
    Peer,
    Relay,
    bound,
    connect,
    data,
    listen_state,
    of_kind,
)
from tunnel.wire import (
    USER_BYTES_MAX,
    Answer,
    Attach,
    Attached,
    Exchange,
    Packet,
    PacketType,
    Status,
    StatusCode,
    decode_envelope,
    decode_listen_state,
    encode_envelope,
    mask_of,
    whole_packet,
)
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.decisions import Deny
from tunnel_servlet.switch.responses import RelayResponse
from tunnel_servlet.switch.switch import Switch


def sequences(frames_or_packets: list[Packet]) -> list[int]:
    return [packet.sequence for packet in frames_or_packets]


# --- bodies that are refused


def refused(relay: Relay, body: bytes, user: str = "ann") -> tuple[int, Status]:
    handle = relay.post(user, body)
    message = relay.message(handle)
    assert isinstance(message, Status)
    return relay.responses[handle].status, message


def test_7_10_a_damaged_body_is_answered_as_corrupt() -> None:
    relay = Relay()
    body = b"".join(encode_envelope(Attach(bytes(32), 1, 0, 1 << 20)))
    for damaged in (body[:-1], body[:-1] + b"\xff", b"<html>"):
        status, message = refused(relay, damaged)
        assert (status, message.code) == (400, StatusCode.CORRUPT)


def test_6_3_an_unknown_attachment_or_epoch_is_answered_404() -> None:
    relay = Relay()
    stranger = Peer(relay, seed=9)
    stranger.numbers[0] = 1
    known = Peer(relay).attached()
    known.push()
    cases = [
        stranger.repeat(),
        known.repeat(epoch=known.epoch ^ 1),
        known.repeat(generation=2),
        Peer(relay, user="eve", epoch=known.epoch).repeat(),
    ]
    assert [relay.responses[handle].status for handle in cases] == [404] * 4
    assert len({b"".join(relay.responses[handle].body) for handle in cases}) == 1


def test_6_2_a_stale_generation_is_answered_409() -> None:
    relay = Relay()
    peer = Peer(relay, generation=3).attached()
    handle = peer.send(generation=2)
    assert relay.responses[handle].status == 409
    assert peer.status(handle).code == StatusCode.STALE


# --- pulls


def test_7_4_a_pull_that_finds_nothing_is_held_until_something_waits() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    held = client.pull()
    assert held not in relay.responses
    assert relay.switch.stats().parked_pulls == 1
    exit_.push(data(22, 11, 501))
    assert sequences(client.packets(held)) == [501]
    assert relay.switch.stats().parked_pulls == 0


def test_7_4_a_pull_that_finds_something_is_answered_at_once() -> None:
    client, exit_ = bound(Relay())
    exit_.push(data(22, 11, 501))
    assert sequences(client.packets(client.pull())) == [501]


def test_7_4_a_push_is_answered_at_once_with_what_waits() -> None:
    client, exit_ = bound(Relay())
    held = client.pull(lane=1)
    assert client.push(data(11, 22, 101)) == []
    assert held not in client.relay.responses
    assert sequences(exit_.push(data(22, 11, 501))) == [101]
    assert sequences(client.packets(held)) == [501]


def test_7_4_the_oldest_held_pull_is_answered_first() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    held = [client.pull(lane=lane) for lane in (2, 0, 1)]
    for number in range(3):
        exit_.push(data(22, 11, 501 + number))
        assert [handle in relay.responses for handle in held] == [other <= number for other in range(3)]
    assert [sequences(client.packets(handle)) for handle in held] == [[501], [502], [503]]


def test_7_4_packets_beyond_one_answer_leave_on_the_next_pull() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    client.answer_bytes_max = 4096
    held = [client.pull(lane=lane) for lane in range(4)]
    exit_.push(*(data(22, 11, 501 + number, bytes(3000)) for number in range(3)))
    assert [sequences(client.packets(handle)) for handle in held[:3]] == [[501], [502], [503]]
    assert [relay.message(handle).more for handle in held[:3]] == [True, True, False]
    assert held[3] not in relay.responses


def test_7_4_a_hold_ends_and_is_limited() -> None:
    relay = Relay(hold_us_max=2 * SECOND)
    client = Peer(relay).attached()
    short, long = client.pull(lane=0, hold_ms=500), client.pull(lane=1, hold_ms=60_000)
    relay.advance(499 * MS)
    assert short not in relay.responses
    relay.advance(1 * MS)
    assert client.packets(short) == []
    relay.advance(1499 * MS)
    assert long not in relay.responses
    relay.advance(1 * MS)
    assert client.packets(long) == []


def test_7_4_a_shorter_hold_that_begins_later_ends_earlier() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    long, short = client.pull(lane=0, hold_ms=5000), client.pull(lane=1, hold_ms=1000)
    relay.advance(1 * SECOND)
    assert short in relay.responses
    assert long not in relay.responses
    relay.advance(4 * SECOND)
    assert long in relay.responses


def test_7_3_the_next_request_of_a_lane_releases_its_pull() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    held = client.pull()
    assert client.push() == []
    assert relay.message(held).data == b""
    again = client.pull()
    repeated = client.repeat(pull=True, hold_ms=10_000)
    assert client.packets(again) == client.packets(repeated) == []
    assert relay.switch.stats().parked_pulls == 0
    older = client.pull()
    client.repeat(number=1)
    assert older not in relay.responses
    exit_.push(data(22, 11, 501))
    assert sequences(client.packets(older)) == [501]


def test_a_pull_whose_connection_broke_gets_no_packets() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    held = client.pull()
    relay.switch.on_gone(held, relay.now)
    relay.switch.on_gone(held, relay.now)
    exit_.push(data(22, 11, 501))
    relay.advance(60 * SECOND)
    assert held not in relay.responses
    assert sequences(client.push()) == [501]


def test_timers_may_fire_early_or_late() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    held = client.pull(hold_ms=1000)
    relay.switch.handle_timeout(relay.now)
    relay.settle()
    assert held not in relay.responses
    relay.now += 100 * SECOND
    relay.switch.handle_timeout(relay.now)
    relay.switch.handle_timeout(relay.now)
    relay.settle()
    assert held in relay.responses


def test_a_new_switch_has_nothing_to_do() -> None:
    switch = Switch(SwitchConfig(), Random(1), lambda user, target: Deny())
    assert switch.next_timeout() is None
    switch.handle_timeout(5)
    assert switch.poll_response() is None
    assert switch.poll_link_ready() is None
    assert switch.poll_link_end() is None


def test_any_user_may_listen_by_default() -> None:
    relay = Relay()
    assert Peer(relay).attached().listen("any") == []
    assert relay.switch.stats().listeners == 1


def test_6_4_the_pulls_of_a_replaced_endpoint_are_answered() -> None:
    relay = Relay()
    first = Peer(relay, seed=2, name="exit").attached()
    held = [first.pull(lane=0), first.pull(lane=1)]
    Peer(relay, seed=3, name="exit").attached()
    assert [first.status(handle).code for handle in held] == [StatusCode.UNKNOWN] * 2
    assert relay.switch.stats().parked_pulls == 0


def test_a_response_is_a_status_and_a_body() -> None:
    relay = Relay()
    peer = Peer(relay).attached()
    response = relay.responses[peer.send()]
    assert isinstance(response, RelayResponse)
    assert response.status == 200
    assert isinstance(decode_envelope(b"".join(response.body)), Answer)
    assert relay.counters.answers == 2


def test_stats_describe_the_current_state() -> None:
    relay = Relay()
    client, _ = bound(relay)
    client.push(connect(12), listen_state())
    client.pull(lane=1)
    stats = relay.switch.stats()
    assert (stats.users, stats.attachments, stats.exits, stats.links, stats.listeners) == (2, 2, 1, 0, 1)
    assert (stats.routes, stats.routes_bound, stats.routes_pending, stats.routes_parked) == (2, 1, 1, 0)
    assert stats.parked_pulls == 1
    assert stats.bytes_reserved == 4 * relay.config.reserved_bytes
    assert stats.counters is not relay.counters


def refusal_of(relay: Relay, body: bytes, user: str = "ann") -> Status:
    message = decode_envelope(b"".join(relay.responses[relay.post(user, body)].body))
    assert isinstance(message, Status)
    return message


def test_refusals_of_bad_requests_give_the_reason() -> None:
    relay = Relay(body_bytes_max=1000)
    found = refusal_of(relay, bytes(1001))
    assert (found.code, found.text) == (StatusCode.TOO_LARGE, "the body is larger than 1000 bytes")
    found = refusal_of(relay, b"".join(encode_envelope(Answer(0, 1, 1))))
    assert (found.code, found.text) == (StatusCode.MALFORMED, "not a request: send EXCHANGE or ATTACH")
    found = refusal_of(relay, bytes(1000))  # as large as allowed, but malformed
    assert found.code is not StatusCode.TOO_LARGE
    assert found.text


def test_requests_are_counted() -> None:
    relay = Relay()
    for _ in range(3):
        relay.post("ann", b"?")
    assert relay.counters.requests == 3


@pytest.mark.parametrize(("length", "taken"), [(USER_BYTES_MAX, True), (USER_BYTES_MAX + 1, False)])
def test_the_length_of_a_user_name_is_limited(length: int, taken: bool) -> None:
    relay = Relay()
    if taken:
        Peer(relay, user="u" * length).attached()
    else:
        with pytest.raises(ValueError, match="user"):
            relay.post("u" * length, b"?")


def test_refusals_of_impossible_exchanges_give_the_reason() -> None:
    relay = Relay(lanes_max=2)
    client = Peer(relay).attached()
    found = client.status(client.send(lane=2))
    assert (found.code, found.text) == (StatusCode.MALFORMED, "lanes are numbered from 0 to 1")
    small = Relay(mailbox_bytes_max=64 << 10)
    client = Peer(small).attached()
    found = client.status(client.send(piece=True, payload=[bytes(70 << 10)]))
    assert (found.code, found.text) == (StatusCode.BUSY, "the mailbox has no room for a piece of a packet")


def test_refusals_and_damaged_packets_are_counted() -> None:
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


def test_a_link_at_its_limit_of_unreceipted_bytes_gets_no_more() -> None:  # 8.2
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


def test_a_link_is_reported_ready_once_until_it_is_polled() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    assert relay.switch.link_opened(1, client.user, client.identity, client.epoch, 1, relay.now)
    for sequence in (501, 502, 503):
        exit_.push(data(22, 11, sequence))
    for _ in range(2):
        relay.switch.link_packets(1, [], relay.now)  # the link is alive, and packets wait for it
        relay.settle()
    assert relay.links_ready == [1]
    assert len(relay.switch.poll_link(1, 10_000, relay.now)) == 3


def test_a_push_does_not_make_a_silent_link_distrusted() -> None:  # 8.3: a pull does
    relay = Relay()
    client, exit_ = bound(relay)
    assert relay.switch.link_opened(1, client.user, client.identity, client.epoch, 1, relay.now)
    exit_.push(data(22, 11, 501))
    relay.switch.poll_link(1, 10_000, relay.now)
    relay.advance(5_000_000)
    client.push()
    exit_.push(data(22, 11, 502))
    assert relay.links_ready == [1, 1]


def test_an_endpoint_is_not_an_exit_by_default() -> None:
    relay = Relay()
    body = b"".join(encode_envelope(Attach(bytes(32), 1, 0, 1 << 20)))
    relay.switch.request(1, "ann", body, relay.now)
    assert (relay.switch.stats().attachments, relay.switch.stats().exits) == (1, 0)


def test_7_9_the_answer_to_a_masked_request_is_masked() -> None:
    """A filter that rejected the first attempt may have rejected its unmasked answer."""
    relay = Relay()
    peer = Peer(relay)
    attach = Attach(peer.secret, 1, 0, 1 << 20)
    for mask in (0, 1, 255):
        handle = relay.post("ann", b"".join(encode_envelope(attach, mask=mask)))
        assert mask_of(b"".join(relay.responses[handle].body)) == mask
        assert isinstance(relay.message(handle), Attached)


def test_7_9_a_masked_pull_is_answered_with_the_mask_and_forgotten_when_it_is_lost() -> None:
    relay = Relay()
    peer = Peer(relay).attached()
    pull = Exchange(peer.identity, peer.epoch, 1, 0, 1, 0, 10_000, 1 << 20, pull=True)
    handle = relay.post("ann", b"".join(encode_envelope(pull, mask=7)))
    assert handle not in relay.responses
    relay.advance(10 * SECOND)
    assert mask_of(b"".join(relay.responses[handle].body)) == 7
    lost = relay.post("ann", b"".join(encode_envelope(msgspec.structs.replace(pull, number=2), mask=9)))
    relay.switch.on_gone(lost, relay.now)
    assert relay.switch._masks == {}
