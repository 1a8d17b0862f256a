"""The data path, and the packets that the relay does not simply forward (PROTOCOL 6.7, 9.1, 9.5)."""

from tests.servlet.support import (
    DATABASE,
    SECOND,
    Peer,
    Relay,
    accepted,
    bound,
    client_and_exit,
    connect,
    control,
    data,
    frames_of,
    key,
    kinds,
    listen_state,
    of_kind,
    option,
    read_dropped,
)
from tunnel.traces.record import TraceEvent, TraceReason, TraceRecord
from tunnel.wire import (
    Abort,
    AbortReason,
    Dropped,
    DropReason,
    ListenStatus,
    Option,
    Options,
    Packet,
    PacketType,
    decode_abort,
    decode_listen_state,
    decode_option,
    encode_abort,
)

ACK, ABORT, SHUTDOWN = PacketType.ACK, PacketType.ABORT, PacketType.SHUTDOWN


def test_9_1_packets_go_to_the_attachment_the_route_is_bound_to() -> None:
    client, exit_ = bound(Relay())
    assert client.push(data(11, 22, 101), control(ACK, 11, 22)) == []
    found = exit_.push(data(22, 11, 501))
    assert [(packet.type, packet.source, packet.destination) for packet in found] == [
        (ACK, 11, 22), (PacketType.DATA, 11, 22)
    ]  # fmt: skip
    assert kinds(client.push()) == ["DATA"]


def test_1_4_unknown_types_and_versions_are_forwarded() -> None:
    client, exit_ = bound(Relay())
    client.push(Packet(200, 11, 22, 7, b"new", version=9))
    assert [(packet.type, packet.version) for packet in exit_.push()] == [(200, 9)]


def test_9_1_the_destination_must_be_the_bound_one() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    assert client.push(data(11, 23, 101), control(ACK, 11, 23)) == []
    exit_.push(data(22, 0, 501), data(22, 12, 501))
    assert exit_.push() == client.push() == []
    assert relay.counters.packets_misaddressed == 4


def test_9_1_the_source_must_belong_to_the_sending_attachment() -> None:
    client, exit_ = bound(Relay())
    thief = Peer(client.relay, seed=8).attached()
    assert [read_dropped(packet).reason for packet in thief.push(data(11, 22, 101))] == [DropReason.NO_ROUTE]
    assert exit_.push() == []


def test_6_7_data_without_a_route_is_answered_once_for_each_id() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    found = client.push(data(5, 6, 1), data(5, 6, 2), control(ACK, 7, 8), control(PacketType.PING, 5, 6))
    assert [(packet.destination, read_dropped(packet)) for packet in found] == [
        (5, Dropped(DropReason.NO_ROUTE, 0, 0, 0)),
        (7, Dropped(DropReason.NO_ROUTE, 0, 0, 0)),
    ]
    assert relay.counters.packets_without_route == 4


def test_6_7_packets_that_end_or_answer_are_not_answered() -> None:
    client = Peer(Relay()).attached()
    types = (SHUTDOWN, ABORT, PacketType.PONG, PacketType.NOOP, PacketType.REJECTED)
    assert client.push(*(control(kind, 5, 6) for kind in types), data(0, 6, 1)) == []


def test_9_1_edge_and_dropped_from_endpoints_are_not_forwarded() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    client.push(control(PacketType.EDGE, 11, 22, bytes(8)), control(PacketType.DROPPED, 11, 22, bytes(16)))
    client.push(control(PacketType.NOOP, 11, 22))
    assert exit_.push() == []
    assert relay.counters.packets_invalid == 2


def test_2_9_packets_above_the_announced_size_are_dropped_and_reported() -> None:
    relay = Relay(packet_bytes_max=1000, trace=True)
    client, exit_ = bound(relay)
    large = control(PacketType.FINISH, 11, 22, bytes(2000), 103)
    found = client.push(data(11, 22, 101, bytes(976)), data(11, 22, 102, bytes(977)), large)
    assert [read_dropped(packet) for packet in found] == [Dropped(DropReason.TOO_LARGE, 102, 102, 1000)]
    assert kinds(exit_.push(data(22, 11, 501, bytes(977)))) == ["DROPPED", "DATA"]
    assert relay.counters.packets_too_large == 3
    assert relay.records[-1].reason == TraceReason.TOO_LARGE


def test_3_6_early_data_that_is_too_large_is_reported_too() -> None:
    client, _ = client_and_exit(Relay(packet_bytes_max=1000))
    found = client.push(connect(11), data(11, 0, 101, bytes(977)))
    assert [read_dropped(packet).reason for packet in found] == [DropReason.TOO_LARGE]


def test_6_5_packets_that_arrive_during_a_resume_are_lost_silently() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True)
    client.push(connect(11, resume=True, destination=22, endpoint_id=exit_.identity))
    assert client.push(data(11, 22, 200), data(11, 0, 201, bytes(1 << 19))) == []
    exit_.attached()
    assert client.push(data(11, 22, 202)) == []
    exit_.push()
    assert exit_.push(accepted(11, 22, resumed=True)) == []
    assert relay.counters.packets_misaddressed == 0


def test_3_6_data_that_overtakes_its_connect_does_not_look_like_a_lost_route() -> None:
    client = Peer(Relay()).attached()
    assert client.push(data(11, 0, 101)) == []


def test_3_5_data_that_overtakes_its_accepted_does_not_look_like_a_lost_route() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    other = Peer(relay, user="bob", seed=7).attached()
    client.push(connect(11))
    other.push(connect(11, route_key=key(99)))
    exit_.push()
    assert exit_.push(data(22, 11, 501), lane=1) == []
    exit_.push(accepted(11, 22))
    assert exit_.push(data(23, 11, 501), lane=1) == []
    exit_.push(accepted(11, 23, route_key=key(99)))
    assert kinds(client.push()) == kinds(other.push()) == ["ACCEPTED"]
    assert kinds(exit_.push(data(24, 11, 501))) == ["DROPPED"]


def test_9_5_shutdown_is_forwarded_and_the_second_releases_the_route() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    client.push(control(SHUTDOWN, 11, 22))
    assert relay.switch.stats().bytes_reserved == 0
    assert kinds(exit_.push(control(SHUTDOWN, 22, 11))) == ["SHUTDOWN"]
    assert kinds(client.push()) == ["SHUTDOWN"]
    assert relay.switch.stats().routes == 0
    assert kinds(client.push(data(11, 22, 101))) == ["DROPPED"]


def test_9_5_the_route_is_released_sixty_seconds_after_the_first_shutdown() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    client.push(control(SHUTDOWN, 11, 22))
    relay.advance(30 * SECOND)
    client.push(control(SHUTDOWN, 11, 22), data(11, 22, 101))
    assert kinds(exit_.push()) == ["SHUTDOWN", "DATA"]
    relay.advance(31 * SECOND)
    assert relay.switch.stats().routes == 0


def test_3_6_an_abort_before_accepted_is_held_too() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(connect(11), control(ABORT, 11, 0, bytes(4)))
    assert kinds(exit_.push()) == ["CONNECT"]
    found = exit_.push(accepted(11, 22))
    assert [(packet.type, packet.destination) for packet in found] == [(ABORT, 22)]
    client.push(control(ABORT, 11, 0, bytes(4)))
    assert kinds(exit_.push()) == ["ABORT"]
    relay.advance(61 * SECOND)
    assert relay.switch.stats().routes == 0


def test_2_7_the_relay_decides_the_pull_interval_and_reports_it() -> None:
    client = Peer(Relay(pull_interval_us_max=SECOND)).attached()

    def settled(packets: list[Packet]) -> list[Option | None]:
        return [decode_option(packet.payload) for packet in of_kind(packets, PacketType.OPTION)]

    assert settled(client.push(option(3, pull_interval_ms=200))) == [Option(3, Options(pull_interval_ms=200))]
    assert settled(client.push(option(2, pull_interval_ms=900))) == []
    assert settled(client.push(option(3, pull_interval_ms=900))) == [Option(3, Options(pull_interval_ms=200))]
    assert settled(client.push(option(4, pull_interval_ms=5000))) == [Option(4, Options(pull_interval_ms=1000))]
    assert settled(client.push(option(5))) == [Option(5, Options(pull_interval_ms=1000))]


def test_2_7_two_users_the_intervals_of_one_change_nothing_for_the_other() -> None:
    relay = Relay()
    ann, bob = Peer(relay, "ann", seed=1).attached(), Peer(relay, "bob", seed=2).attached()
    held = ann.pull(lane=1, hold_ms=10_000)
    flood = [option(version, pull_interval_ms=version) for version in range(1, 250)]
    (answer,) = bob.push(*flood)  # only the newest answer waits
    assert decode_option(answer.payload) == Option(249, Options(pull_interval_ms=249))
    for _ in range(3):
        assert bob.packets(bob.pull(hold_ms=0)) == []  # answered although the interval is not over
    assert held not in relay.responses
    (answer,) = ann.push(option(1, pull_interval_ms=70_000))
    assert decode_option(answer.payload) == Option(1, Options(pull_interval_ms=60_000))  # the relay's bound
    relay.advance(10 * SECOND)
    assert ann.packets(held) == []


def test_malformed_packets_for_the_relay_are_counted() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    strange = Packet(PacketType.LISTEN_STATE, 1, 0, 0, listen_state().payload)
    assert client.push(control(PacketType.OPTION, 0, 0, b"x"), control(PacketType.LISTEN_STATE, 0, 0), strange) == []
    assert relay.counters.packets_invalid == 3


def test_the_packet_filter_loses_packets_silently() -> None:
    relay = Relay(packet_filter=lambda frame: frame.sequence != 102)
    client, exit_ = bound(relay)
    assert client.push(*(data(11, 22, sequence) for sequence in (101, 102, 103))) == []
    assert [packet.sequence for packet in exit_.push()] == [101, 103]
    assert relay.counters.packets_filtered == 1


def test_an_endpoint_may_connect_to_itself() -> None:
    relay = Relay()
    peer = Peer(relay, is_exit=True).attached()
    assert kinds(peer.push(connect(11, target=DATABASE))) == ["CONNECT"]
    assert kinds(peer.push(accepted(11, 22))) == ["ACCEPTED"]
    found = peer.push(data(11, 22, 101), data(22, 11, 501))
    assert sorted((packet.source, packet.destination) for packet in found) == [(11, 22), (22, 11)]
    relay.advance(301 * SECOND)
    assert relay.switch.stats().attachments == 0


def test_received_and_sent_packets_and_bytes_are_counted() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    before = relay.counters
    client.push(data(11, 22, 101, bytes(100)))
    exit_.push()
    after = relay.counters
    assert after.packets_received - before.packets_received == 1
    assert after.bytes_received - before.bytes_received == 124
    assert after.bytes_sent - before.bytes_sent == 124
    assert frames_of() == []


def test_a_packet_may_be_as_large_as_announced() -> None:  # 7.11
    relay = Relay(packet_bytes_max=1000)
    client, exit_ = bound(relay)
    client.push(data(11, 22, 101, bytes(976)), data(11, 0, 102, bytes(976)))
    assert [packet.sequence for packet in of_kind(exit_.push(), PacketType.DATA)] == [101, 102]
    assert relay.counters.packets_too_large == 0


def test_an_option_on_a_route_is_not_for_the_relay() -> None:  # 2.7
    relay = Relay()
    client, exit_ = bound(relay)
    client.push(control(PacketType.OPTION, 11, 22, b"of the peer", 101))
    assert kinds(exit_.push()) == ["OPTION"]
    assert kinds(client.push()) == []


def test_an_answer_to_an_option_replaces_the_previous_one_but_no_refusal_of_a_name() -> None:
    relay = Relay(may_listen=lambda user, name: False)
    client = Peer(relay).attached()
    found = client.push(option(1, pull_interval_ms=1000), listen_state("a"), listen_state("b"), option(2))
    assert sorted(kinds(found)) == ["LISTEN_STATE", "LISTEN_STATE", "OPTION"]
    refused = [decode_listen_state(packet.payload) for packet in of_kind(found, PacketType.LISTEN_STATE)]
    assert {(state.name, state.state) for state in refused if state is not None} == {
        ("a", ListenStatus.REFUSED),
        ("b", ListenStatus.REFUSED),
    }


def test_the_trace_describes_a_lost_packet_completely() -> None:
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


def test_a_ping_with_neither_source_nor_destination_is_not_taken_for_an_option() -> None:
    relay = Relay()
    client = Peer(relay).attached()
    client.push(control(PacketType.PING, 0, 0, b"?"))
    assert (relay.counters.packets_without_route, relay.counters.packets_invalid) == (1, 0)


def test_9_2_of_several_aborts_the_first_stays_because_it_names_the_reason() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    for reason in (AbortReason.DENIED, AbortReason.NO_SUCH_CONNECTION):
        exit_.push(control(ABORT, 22, 11, encode_abort(Abort(reason, "text"))))
    (packet,) = client.push()
    abort = decode_abort(packet.payload)
    assert abort is not None
    assert abort.reason == AbortReason.DENIED
