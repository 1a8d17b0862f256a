"""More of forwarding: limits to the byte and to the packet, what is counted, and what the trace says of a loss."""

from tests.servlet.support import Peer, Relay, bound, control, data, kinds, listen_state, of_kind, option
from tunnel.traces.record import TraceEvent, TraceReason, TraceRecord
from tunnel.wire import ListenStatus, PacketType, decode_listen_state


def test_a_body_may_have_as_many_packets_as_allowed_and_the_rest_counts_each_time() -> None:  # 7.11
    relay = Relay(packets_per_body_max=3)
    client, exit_ = bound(relay)
    client.push(*(data(11, 22, 101 + number) for number in range(3)))
    assert relay.counters.packets_too_many == 0
    assert len(of_kind(exit_.push(), PacketType.DATA)) == 3
    for start in (104, 109):
        client.push(*(data(11, 22, start + number) for number in range(5)))
    assert relay.counters.packets_too_many == 4


def test_every_byte_counts() -> None:
    relay = Relay()
    client, _ = bound(relay)
    before = relay.counters.bytes_received
    client.push(data(11, 22, 101, bytes(100)), data(11, 22, 102, bytes(50)))
    assert relay.counters.bytes_received == before + 24 + 100 + 24 + 50


def test_a_packet_may_be_as_large_as_announced() -> None:  # 7.11
    relay = Relay(packet_bytes_max=1000)
    client, exit_ = bound(relay)
    client.push(data(11, 22, 101, bytes(976)), data(11, 0, 102, bytes(976)))
    assert [packet.sequence for packet in of_kind(exit_.push(), PacketType.DATA)] == [101, 102]
    assert relay.counters.packets_too_large == 0


def test_an_option_of_a_route_is_not_the_relays() -> None:  # 2.7
    relay = Relay()
    client, exit_ = bound(relay)
    client.push(control(PacketType.OPTION, 11, 22, b"of the peer", 101))
    assert kinds(exit_.push()) == ["OPTION"]
    assert kinds(client.push()) == []


def test_the_answer_to_an_option_replaces_the_one_before_and_no_refusal() -> None:
    relay = Relay(may_listen=lambda user, name: False)
    client = Peer(relay).attached()
    found = client.push(option(1, pull_interval_ms=1000), listen_state("a"), listen_state("b"), option(2))
    assert sorted(kinds(found)) == ["LISTEN_STATE", "LISTEN_STATE", "OPTION"]
    refused = [decode_listen_state(packet.payload) for packet in of_kind(found, PacketType.LISTEN_STATE)]
    assert {(state.name, state.state) for state in refused if state is not None} == {
        ("a", ListenStatus.REFUSED),
        ("b", ListenStatus.REFUSED),
    }


def test_the_trace_says_all_of_a_packet_that_was_lost() -> None:
    relay = Relay(trace=True)
    client = Peer(relay).attached()
    client.push(data(77, 88, 99))
    assert relay.records[-1] == TraceRecord(
        time_us=relay.now,
        node="relay",
        event=TraceEvent.PACKET_DROPPED,
        connection=77,
        peer=88,
        packet_type=int(PacketType.DATA),
        sequence=99,
        reason=TraceReason.NO_ROUTE,
    )


def test_what_is_of_nobody_and_for_nobody_is_no_option() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    client.push(control(PacketType.PING, 0, 0, b"?"))
    assert (relay.counters.packets_without_route, relay.counters.packets_invalid) == (1, 0)
