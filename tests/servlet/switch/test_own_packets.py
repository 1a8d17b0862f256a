"""The packets that the relay itself creates."""

from tests.servlet.support import read_dropped, read_edge, read_rejected
from tunnel.wire import (
    Dropped,
    Edge,
    Frame,
    ListenState,
    ListenStatus,
    Option,
    Options,
    Packet,
    Rejected,
    decode_listen_state,
    decode_option,
    parse_packets,
)
from tunnel_servlet.switch.own_packets import (
    dropped_frame,
    edge_frame,
    listen_state_frame,
    option_frame,
    rejected_frame,
)


def packet(frame: Frame) -> Packet:
    packets, discarded = parse_packets(frame.data)
    assert discarded is None
    return packets[0]


def test_2_9_dropped_has_no_source_and_goes_to_the_senders_id() -> None:
    found = packet(dropped_frame(7, 1, 5, 6, 100))
    assert (found.source, found.destination) == (0, 7)
    assert read_dropped(found) == Dropped(1, 5, 6, 100)


def test_2_10_edge_has_no_source_and_goes_to_the_senders_id() -> None:
    found = packet(edge_frame(7, 5, 100))
    assert (found.source, found.destination) == (0, 7)
    assert read_edge(found) == Edge(5, 100)


def test_2_3_rejected_has_the_initiators_id_as_its_source() -> None:
    found = packet(rejected_frame(7, bytes(16), 8, "busy"))
    assert (found.source, found.destination) == (7, 0)
    assert read_rejected(found) == Rejected(bytes(16), 8, "busy")


def test_2_7_and_2_8_option_and_listen_state_have_no_source_and_no_destination() -> None:
    answered = Option(3, Options(pull_interval_ms=50))
    refused = ListenState(3, ListenStatus.REFUSED, 0, "reports")
    assert decode_option(option_frame(answered).payload) == answered
    assert decode_listen_state(listen_state_frame(refused).payload) == refused
    for frame in (option_frame(answered), listen_state_frame(refused)):
        assert (frame.source, frame.destination) == (0, 0)


def test_packets_of_the_relay_have_no_sequence_number() -> None:  # 1.6
    said = (
        dropped_frame(1, 2),
        edge_frame(1, 2, 3),
        rejected_frame(1, bytes(16), 2, ""),
        option_frame(Option(1, Options())),
        listen_state_frame(ListenState(1, ListenStatus.UP, 1, "s")),
    )
    assert {frame.sequence for frame in said} == {0}
