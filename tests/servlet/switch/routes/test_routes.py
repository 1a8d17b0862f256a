"""Many routes: limits on lingering ones, and how routes are released (PROTOCOL 9.5)."""

from tests.servlet.support import (
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    bind,
    client_and_exit,
    connect,
    control,
    data,
    key,
    kinds,
    read_dropped,
    read_edge,
    read_rejected,
)
from tunnel.traces.record import TraceEvent, TraceReason
from tunnel.wire import DropReason, Edge, Packet, PacketType, RejectReason

SHUTDOWN = PacketType.SHUTDOWN


def test_9_5_a_bounded_number_of_routes_waits_for_the_second_shutdown() -> None:
    relay = Relay(lingering_per_attachment_max=2)
    client, exit_ = client_and_exit(relay)
    for number in range(1, 5):
        bind(client, exit_, number, 100 + number)
        client.push(control(SHUTDOWN, number, 100 + number))
        exit_.push()
    assert relay.switch.stats().routes == 2
    assert kinds(exit_.push(data(101, 1, 5))) == ["DROPPED"]
    assert exit_.push(data(104, 4, 5)) == []


def test_9_5_routes_that_got_the_second_shutdown_do_not_count() -> None:
    relay = Relay(lingering_per_attachment_max=2)
    client, exit_ = client_and_exit(relay)
    for number in range(1, 6):
        bind(client, exit_, number, 100 + number)
        client.push(control(SHUTDOWN, number, 100 + number))
        exit_.push()
        if number < 4:
            exit_.push(control(SHUTDOWN, 100 + number, number))
            client.push()
    assert relay.switch.stats().routes == 2
    relay.advance(61 * SECOND)
    assert relay.switch.stats().routes == 0


def test_9_5_a_waiting_route_does_not_keep_routes_that_ended_after_it() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    for number in range(1, 6):
        bind(client, exit_, number, 100 + number)
        client.push(control(SHUTDOWN, number, 100 + number))
        exit_.push()
        if number > 1:
            exit_.push(control(SHUTDOWN, 100 + number, number))
    lingering = relay.switch._registry.by_id[client.identity].lingering
    assert [route.initiator.own_id for route in lingering] == [1]
    relay.advance(61 * SECOND)
    assert not lingering


def test_9_2_every_route_reserves_on_both_sides_and_has_one_timer_until_it_is_bound() -> None:
    relay = Relay(
        process_bytes_max=1 << 30,
        mailbox_bytes_max=1 << 28,
        exit_mailbox_bytes_max=1 << 28,
        user_bytes_max=1 << 29,
        routes_per_attachment_max=2000,
    )
    client, exit_ = client_and_exit(relay)
    client.push(*map(connect, range(1, 1001)))
    assert len(exit_.push()) == 1000
    stats = relay.switch.stats()
    assert stats.routes == 1000
    assert stats.timers <= 1010
    assert stats.bytes_reserved == 2 * 1000 * relay.config.reserved_bytes
    exit_.push(*(accepted(number, 5000 + number) for number in range(1, 1001)))
    assert len(client.push()) == 1000
    assert relay.switch.stats().timers < 100


def test_9_5_unanswered_connects_to_oneself_leave_no_route_and_no_bytes() -> None:
    relay = Relay()
    peer = Peer(relay, is_exit=True).attached()
    peer.push(connect(11), connect(12))
    relay.advance(59 * SECOND)
    peer.push()
    relay.advance(301 * SECOND)
    assert relay.switch.stats().routes == relay.switch.stats().bytes_held == 0


def test_9_6_a_route_to_oneself_is_forgotten_with_both_its_sides() -> None:
    relay = Relay()
    peer = Peer(relay, is_exit=True).attached()
    peer.push(connect(11))
    peer.push(accepted(11, 22))
    relay.advance(301 * SECOND)
    assert relay.switch.stats().routes == relay.switch.stats().attachments == 0


def test_7_12_a_sender_with_too_large_an_initial_edge_gets_the_real_one_when_the_route_is_bound() -> None:
    relay = Relay(route_bytes_max=32 << 10, initial_edge_bytes=64 << 10)
    client, exit_ = client_and_exit(relay)
    client.push(connect(11, sequence=100))
    exit_.push()
    (told,) = exit_.push(accepted(11, 22))
    assert (told.destination, read_edge(told)) == (22, Edge(500, 32 << 10))
    told = client.push()[0]
    assert (told.destination, read_edge(told)) == (11, Edge(100, 32 << 10))


def reasons(packets: list[Packet]) -> list[int]:
    return [read_rejected(packet).reason for packet in packets]


def test_3_2_a_route_is_refused_without_room_or_with_a_key_in_use() -> None:
    relay = Relay(routes_max=2, general_packets_max=1)
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    other = Peer(relay, seed=5).attached()
    assert reasons(other.push(connect(12, route_key=key(11)))) == [RejectReason.ID_IN_USE]
    assert reasons(client.push(connect(12))) == [RejectReason.BUSY]
    exit_.push()
    client.push(connect(12))
    exit_.push()
    assert reasons(client.push(connect(13))) == [RejectReason.BUSY]
    relay = Relay(mailbox_bytes_max=24 << 10)
    client, _ = client_and_exit(relay)
    assert [reasons(client.push(connect(number))) for number in (11, 12)] == [[], [RejectReason.BUSY]]
    relay = Relay(exit_mailbox_bytes_max=24 << 10)
    client, _ = client_and_exit(relay)
    assert [reasons(client.push(connect(number))) for number in (11, 12)] == [[], [RejectReason.BUSY]]


def resume(initiator: int, endpoint: Peer) -> Packet:
    return connect(initiator, resume=True, destination=22, endpoint_id=endpoint.identity)


def test_6_5_resumes_are_parked_delivered_and_bound() -> None:
    relay = Relay(trace=True)
    client = Peer(relay).attached()
    exit_ = Peer(relay, "exits", 2, is_exit=True)
    client.push(resume(11, exit_), resume(12, exit_))
    relay.advance(3 * SECOND)
    client.push(resume(11, exit_))
    relay.advance(3 * SECOND)
    assert relay.switch.stats().routes_parked == 1
    exit_.attached()
    assert [packet.source for packet in exit_.push()] == [11]
    exit_.push(accepted(11, 22, resumed=True))
    assert kinds(client.push()) == ["ACCEPTED"]
    assert relay.records[-1].event == TraceEvent.ROUTE_RESUMED


def test_6_5_an_unanswered_resume_is_forgotten_silently() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    client.push(resume(11, exit_))
    relay.advance(76 * SECOND)
    assert client.push() == []
    assert relay.switch.stats().routes == 0


def test_6_5_a_resume_is_refused_when_its_acceptor_is_replaced_but_not_when_it_expires() -> None:
    relay = Relay(pending_timeout_us=1000 * SECOND)
    client, exit_ = client_and_exit(relay)
    relay.advance(200 * SECOND)
    client.push(resume(11, exit_))
    relay.advance(101 * SECOND)
    assert client.push() == []
    named = Peer(relay, "exits", 3, "exit", is_exit=True).attached()
    client.push(resume(11, named))
    Peer(relay, "exits", 4, "exit", is_exit=True).attached()
    assert reasons(client.push()) == [RejectReason.GONE]


def test_9_6_both_sides_of_a_route_may_vanish() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    bind(client, exit_, 11, 22)
    relay.advance(250 * SECOND)
    client.push(connect(12))
    relay.advance(51 * SECOND)
    found = client.push()
    assert kinds(found) == ["DROPPED", "REJECTED"]
    assert read_dropped(found[0]).reason == DropReason.NO_ROUTE
    relay.advance(301 * SECOND)
    assert relay.switch.stats().routes == 0


def test_a_refusal_after_a_timeout_gives_the_reason() -> None:  # 3.2
    relay = Relay()
    client, _ = client_and_exit(relay)
    client.push(connect(11))
    relay.advance(76 * SECOND)
    (packet,) = client.push()
    found = read_rejected(packet)
    text = "the exit has been silent for 75 s"
    assert (found.reason, found.text) == (RejectReason.TIMED_OUT, text)


def test_all_routes_of_an_endpoint_that_is_replaced_end() -> None:  # 6.4
    relay = Relay()
    client, exit_ = client_and_exit(relay, name="exit")
    exit_.listen()
    assert kinds(exit_.push(connect(51, target=REPORTS))) == ["CONNECT"]  # a route of the exit to itself
    exit_.push(accepted(51, 52))
    exit_.push()
    for initiator, acceptor in ((11, 61), (12, 62)):
        bind(client, exit_, initiator, acceptor)
    for initiator in (13, 14):
        client.push(connect(initiator))
    Peer(relay, "exits", 9, "exit").attached()  # no exit any more: it cannot take the CONNECTs over
    found = client.push()
    gone = [read_dropped(packet).reason for packet in found if packet.type == PacketType.DROPPED]
    refused = [read_rejected(packet) for packet in found if packet.type == PacketType.REJECTED]
    assert gone == [DropReason.GONE] * 2
    assert [(each.reason, each.text) for each in refused] == [
        (RejectReason.GONE, "the accepting endpoint is no longer attached")
    ] * 2
    assert relay.switch.stats().routes == 0


def test_routes_are_counted() -> None:
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    for initiator, acceptor in ((11, 21), (12, 22)):
        bind(client, exit_, initiator, acceptor)
    for initiator, acceptor in ((13, 23), (14, 24)):
        client.push(connect(initiator, resume=True, destination=acceptor, endpoint_id=exit_.identity))
        exit_.push()
        exit_.push(accepted(initiator, acceptor, resumed=True))
        client.push()
    for initiator, acceptor in ((11, 21), (12, 22)):
        client.push(control(SHUTDOWN, initiator, acceptor))
        exit_.push(control(SHUTDOWN, acceptor, initiator))
    counters = relay.counters
    assert (counters.routes_bound, counters.routes_resumed, counters.routes_released) == (4, 2, 2)


def test_the_trace_names_the_user_of_a_route_and_why_it_ended() -> None:
    relay = Relay(trace=True)
    client, exit_ = client_and_exit(relay, name="exit")
    bind(client, exit_, 11, 21)
    (opened,) = [record for record in relay.records if record.event == TraceEvent.ROUTE_BOUND]
    assert (opened.connection, opened.peer, opened.text) == (11, 21, "ann")
    Peer(relay, "exits", 9, "exit", is_exit=True).attached()
    (ended,) = [record for record in relay.records if record.event == TraceEvent.ROUTE_RELEASED]
    assert (ended.connection, ended.peer, ended.text, ended.reason) == (11, 21, "bound", TraceReason.GONE)
    silent = Relay(trace=True)
    bind(*client_and_exit(silent), 11, 21)
    silent.advance(301 * SECOND)
    (forgotten,) = [record for record in silent.records if record.event == TraceEvent.ROUTE_RELEASED]
    assert (forgotten.reason, forgotten.time_us) == (TraceReason.NO_ROUTE, silent.now - SECOND)
