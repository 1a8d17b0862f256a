"""More of an endpoint: batches with strangers in them, what it answers, and what its trace says."""

from tests.core.solo import PEER, SERVICE, Solo
from tunnel.core import EndpointConfig, Readable
from tunnel.core.constants import SECOND_US
from tunnel.traces.record import TraceEvent, TraceRecord
from tunnel.wire import Packet, PacketType, encode_packets, parse_packets

DATA = PacketType.DATA


def test_what_is_of_another_version_hides_nothing_behind_it() -> None:  # 1.2
    solo = Solo().opened()
    strange = Packet(DATA, PEER, solo.connection.id, 7, b"?", 0, 9)
    stranger = Packet(DATA, PEER, solo.connection.id + 1, 7, b"?")
    mine = solo.packet(DATA, b"x", number=0)
    packets, _ = parse_packets(b"".join(encode_packets([mine])))
    solo.endpoint.receive_packets([strange, stranger, *packets], solo.now)
    assert solo.events() == [Readable(solo.connection.id)]
    assert solo.endpoint.packets_discarded == 2


def test_a_stranger_is_answered_without_a_number() -> None:  # 3.9
    solo = Solo()
    solo.receive(Packet(DATA, 5, 6, 7, b"x"))
    (packet,) = solo.out()
    assert (packet.type, packet.source, packet.destination, packet.sequence) == (PacketType.ABORT, 6, 5, 0)


def test_the_route_key_has_16_bytes() -> None:  # 3.1
    assert len(Solo().connect().connection.identity.route_key) == 16


def test_a_trace_says_who_spoke_to_whom_and_what_the_timers_stand_at() -> None:
    records: list[TraceRecord] = []
    solo = Solo(trace=records.append).opened(SERVICE)
    connection = solo.connection
    connection.write(b"abc", solo.now)
    solo.out()
    solo.now += SECOND_US // 10
    solo.ack()
    connection.sender.rtt.backed_off()
    connection.abort(solo.now)
    ended = [record for record in records if record.event == TraceEvent.CONNECTION_STATE_UPDATED][-1]
    assert (ended.node, ended.connection, ended.peer) == ("solo", connection.id, PEER)
    assert (ended.srtt_us, ended.rto_us, ended.backoff, ended.text) == (100_000, 2 * SECOND_US, 1, "closed")
    received = [record for record in records if record.event == TraceEvent.PACKET_RECEIVED]
    assert {record.cause for record in received} == {""}
    assert [record.packet_type for record in received] == [PacketType.ACCEPTED, PacketType.ACK]


def test_an_endpoint_without_a_name_has_none_in_its_trace() -> None:
    assert Solo().endpoint.name == "solo"
    solo = Solo(EndpointConfig())
    assert type(solo.endpoint)(solo.endpoint.config, solo.endpoint.random).name == ""
