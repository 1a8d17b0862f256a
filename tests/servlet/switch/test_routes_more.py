"""More of routes: what their ends say, count and trace, and that one route's end hides no other's."""

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
    kinds,
    read_dropped,
    read_rejected,
)
from tunnel.traces.record import TraceEvent, TraceReason
from tunnel.wire import DropReason, PacketType, RejectReason

SHUTDOWN = PacketType.SHUTDOWN


def test_a_refusal_for_want_of_an_answer_says_so() -> None:  # 3.2
    relay = Relay()
    client, _ = client_and_exit(relay)
    client.push(connect(11))
    relay.advance(76 * SECOND)
    (packet,) = client.push()
    found = read_rejected(packet)
    assert (found.reason, found.text) == (RejectReason.TIMED_OUT, "nobody answered the request")


def test_all_routes_of_an_endpoint_that_is_replaced_end() -> None:  # 6.4
    relay = Relay()
    client, exit_ = client_and_exit(relay, name="exit")
    exit_.listen()
    assert kinds(exit_.push(connect(51, target=REPORTS))) == ["CONNECT"]  # of the exit with itself
    exit_.push(accepted(51, 52))
    exit_.push()
    for initiator, acceptor in ((11, 61), (12, 62)):
        bind(client, exit_, initiator, acceptor)
    for initiator in (13, 14):
        client.push(connect(initiator))
    Peer(relay, "exits", 9, "exit", is_exit=True).attached()
    found = client.push()
    gone = [read_dropped(packet).reason for packet in found if packet.type == PacketType.DROPPED]
    refused = [read_rejected(packet) for packet in found if packet.type == PacketType.REJECTED]
    assert gone == [DropReason.GONE] * 2
    assert [(each.reason, each.text) for each in refused] == [(RejectReason.GONE, "the endpoint is gone")] * 2
    assert relay.switch.stats().routes == 0


def test_every_route_counts() -> None:
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


def test_the_trace_says_whose_route_it_was_and_why_it_ended() -> None:
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
