"""A frame has the fields and the bytes of its packet."""

from hypothesis import given

from tests.wire.strategies import packets
from tunnel.wire.batch import frame_of
from tunnel.wire.encoding import whole_packet
from tunnel.wire.packet import Packet


@given(packets)
def test_a_frame_has_the_fields_and_bytes_of_its_packet(packet: Packet) -> None:
    frame = frame_of(packet)
    assert (frame.payload, frame.size, frame.data) == (packet.payload, packet.size, whole_packet(packet))
    assert (
        Packet(frame.type, frame.source, frame.destination, frame.sequence, frame.payload, frame.attempt, frame.version)
        == packet
    )
