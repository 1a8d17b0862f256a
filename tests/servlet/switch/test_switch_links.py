"""Links as another path for packets out of the mailbox (section 8)."""

from tests.servlet.support import (
    Peer,
    Relay,
    bound,
    data,
    frames_of,
    kinds,
)
from tunnel.wire import (
    Packet,
    parse_packets,
)


def sequences(frames_or_packets: list[Packet]) -> list[int]:
    return [packet.sequence for packet in frames_or_packets]


def open_link(relay: Relay, peer: Peer, link: int = 1) -> bool:
    opened = relay.switch.link_opened(link, peer.user, peer.identity, peer.epoch, peer.generation, relay.now)
    relay.settle()
    return opened


def poll(relay: Relay, link: int = 1, limit: int = 1 << 20) -> list[int]:
    frames = relay.switch.poll_link(link, limit, relay.now)
    relay.settle()
    return [frame.sequence for frame in frames]


def test_8_packets_pass_both_ways_on_a_link() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    assert open_link(relay, client)
    relay.switch.link_packets(1, frames_of(data(11, 22, 101)), relay.now)
    relay.settle()
    assert sequences(exit_.push(data(22, 11, 501), data(22, 11, 502))) == [101]
    assert relay.links_ready == [1]
    assert poll(relay, limit=30) == [501]
    assert poll(relay) == [502]
    assert poll(relay) == []
    relay.switch.link_receipted(1, 2, relay.now)
    assert relay.switch.stats().bytes_held == relay.switch.stats().bytes_outstanding
    exit_.push(data(22, 11, 503))
    assert relay.links_ready == [1, 1]


def test_8_a_held_pull_takes_precedence_over_a_link() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    open_link(relay, client)
    held = client.pull(lane=1)
    exit_.push(data(22, 11, 501))
    assert sequences(client.packets(held)) == [501]
    assert relay.links_ready == []


def test_8_3_packets_that_a_lost_link_did_not_deliver_leave_elsewhere() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    open_link(relay, client)
    exit_.push(*(data(22, 11, 501 + number) for number in range(3)))
    assert [poll(relay, limit=30), poll(relay)] == [[501], [502, 503]]
    relay.switch.link_receipted(1, 1, relay.now)
    held = client.pull(lane=1)
    relay.switch.link_closed(1, relay.now)
    relay.settle()
    assert sequences(client.packets(held)) == [502, 503]
    assert relay.switch.stats().links == 0


def test_two_users_a_link_with_too_many_packets_without_a_receipt_gets_no_more() -> None:
    # Small packets, such as DROPPED for each packet of a flood, hardly count as bytes, but all are taken back at once.
    relay = Relay(unreceipted_packets_max=4)
    client, exit_ = bound(relay)
    open_link(relay, client)
    exit_.push(*(data(22, 11, 501 + number) for number in range(6)))
    relay.links_ready.clear()
    assert [poll(relay), poll(relay)] == [[501, 502, 503, 504], []]
    relay.switch.link_receipted(1, 1, relay.now)
    relay.settle()
    assert relay.links_ready == [1]
    assert poll(relay) == [505, 506]


def test_8_a_link_needs_its_attachment() -> None:
    relay = Relay(links_per_attachment_max=2)
    client = Peer(relay).attached()
    now = relay.now
    opened = relay.switch.link_opened
    assert not opened(1, "eve", client.identity, client.epoch, 1, now)
    assert not opened(1, "ann", bytes(16), client.epoch, 1, now)
    assert not opened(1, "ann", client.identity, client.epoch ^ 1, 1, now)
    assert not opened(1, "ann", client.identity, client.epoch, 2, now)
    assert opened(1, "ann", client.identity, client.epoch, 1, now)
    assert not opened(1, "ann", client.identity, client.epoch, 1, now)
    assert opened(2, "ann", client.identity, client.epoch, 1, now)
    assert not opened(3, "ann", client.identity, client.epoch, 1, now)
    assert relay.counters.links_opened == 2


def test_8_events_of_an_unknown_link_do_nothing() -> None:
    relay = Relay()
    relay.switch.link_packets(5, frames_of(data(1, 2, 3)), relay.now)
    relay.switch.link_receipted(5, 1, relay.now)
    relay.switch.link_closed(5, relay.now)
    assert poll(relay, 5) == []


def test_6_2_a_higher_generation_ends_the_links_of_the_older() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    open_link(relay, client)
    exit_.push(data(22, 11, 501))
    poll(relay)
    client.attach(generation=2)
    assert relay.links_ended == [1]
    assert sequences(client.push()) == [501]
    relay.switch.link_closed(1, relay.now)


def test_6_4_the_links_of_a_replaced_endpoint_end() -> None:
    relay = Relay()
    first = Peer(relay, seed=2, name="exit").attached()
    open_link(relay, first)
    Peer(relay, seed=3, name="exit").attached()
    assert relay.links_ended == [1]
    assert relay.switch.stats().links == 0


def test_9_4_an_edge_leaves_on_a_held_pull_of_the_sender() -> None:
    relay = Relay(initial_edge_bytes=16 << 10, route_bytes_max=16 << 10)
    client, exit_ = bound(relay)
    client.push(data(11, 22, 101, bytes(8000)))
    held = client.pull(lane=1)
    assert sequences(exit_.push()) == [101]
    assert kinds(client.packets(held)) == ["EDGE"]


def test_packets_pass_from_link_to_link() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    open_link(relay, client, 1)
    open_link(relay, exit_, 2)
    body = b"".join(bytes(frame.data) for frame in frames_of(data(11, 22, 101), data(11, 22, 102)))
    packets, _ = parse_packets(body)
    relay.switch.link_packets(1, frames_of(*packets), relay.now)
    relay.settle()
    assert relay.links_ready == [2]
    assert poll(relay, 2) == [101, 102]


def test_8_packets_leave_on_the_link_that_the_endpoint_used_last() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    for link in (1, 2, 3):
        assert open_link(relay, client, link)
    exit_.push(data(22, 11, 501))
    assert relay.links_ready == [3]
    assert poll(relay, 3) == [501]
    relay.switch.link_packets(1, frames_of(data(11, 22, 101)), relay.now)
    relay.settle()
    exit_.push(data(22, 11, 502))
    assert relay.links_ready == [3, 1]
    assert poll(relay, 1) == [502]
    relay.switch.link_packets(1, frames_of(data(11, 22, 102)), relay.now)
    relay.settle()
    exit_.push(data(22, 11, 503))
    assert relay.links_ready == [3, 1, 1]


def test_8_what_the_link_in_use_has_no_room_for_leaves_on_no_older_one() -> None:
    """The older link was replaced and will close, or is a spare."""
    relay = Relay()
    client, exit_ = bound(relay)
    for link in (1, 2):
        assert open_link(relay, client, link)
    exit_.push(*(data(22, 11, 501 + number, bytes(64_000)) for number in range(5)))
    assert [poll(relay, 2), poll(relay, 2)] == [[501, 502, 503, 504, 505], []]
    relay.links_ready.clear()
    exit_.push(data(22, 11, 506))
    assert relay.links_ready == []
    relay.switch.link_receipted(2, 1, relay.now)
    relay.settle()
    assert relay.links_ready == [2]
    assert poll(relay, 2) == [506]


def test_8_a_silent_link_gives_its_packets_back_when_the_endpoint_uses_another() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    for link in (1, 2):
        assert open_link(relay, client, link)
    exit_.push(data(22, 11, 501))
    assert poll(relay, 2) == [501]
    relay.now += relay.switch.config.link_stalled_us
    relay.switch.link_packets(1, frames_of(data(11, 22, 101)), relay.now)
    relay.settle()
    assert poll(relay, 1) == []  # link 2 has been silent for exactly `link_stalled_us`, not for longer
    relay.switch.link_packets(2, frames_of(data(11, 22, 102)), relay.now)
    relay.now += 1
    relay.switch.link_packets(1, frames_of(data(11, 22, 103)), relay.now)
    relay.settle()
    assert poll(relay, 1) == [501]


def test_8_a_silent_link_gets_no_packets_when_it_can_take_more_bytes() -> None:
    """Bytes that leave the relay's own buffer do not show that the link is alive."""
    relay = Relay()
    client, exit_ = bound(relay)
    for link in (1, 2):
        assert open_link(relay, client, link)
    exit_.push(data(22, 11, 501))
    assert poll(relay, 2) == [501]
    relay.now += relay.switch.config.link_stalled_us + 1
    relay.switch.link_packets(1, frames_of(data(11, 22, 101)), relay.now)
    assert poll(relay, 2) == []
    relay.settle()
    assert poll(relay, 1) == [501]
    relay.switch.link_packets(2, frames_of(data(11, 22, 102)), relay.now)
    exit_.push(data(22, 11, 502))
    assert poll(relay, 2) == [502]  # it is alive again


def test_8_a_single_link_keeps_its_packets_when_traffic_comes_on_it() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    assert open_link(relay, client)
    exit_.push(data(22, 11, 501))
    assert poll(relay) == [501]
    relay.now += 10 * relay.switch.config.link_stalled_us
    relay.switch.link_packets(1, frames_of(data(11, 22, 101)), relay.now)
    relay.settle()
    assert poll(relay) == []
