"""Clauses 1.3 to 1.5: sizes and types."""

from hypothesis import given

from tests.wire.strategies import packets, u8, u32
from tunnel.wire.encoding import whole_packet
from tunnel.wire.packet import SEQUENCED, Packet, PacketType, is_sequenced


@given(packets)
def test_size_is_the_size_on_the_wire(packet: Packet) -> None:  # 1.3
    assert packet.size == len(whole_packet(packet))


def test_six_types_are_sequenced() -> None:  # 1.5
    names = {kind.name for kind in PacketType if kind in SEQUENCED}
    assert names == {"CONNECT", "ACCEPTED", "DATA", "CLOSE", "OPTION", "FINISH"}


@given(u8, u32, u32)
def test_option_is_sequenced_only_on_a_connection(kind: int, source: int, destination: int) -> None:  # 1.5, 2.7
    of_the_attachment = kind == PacketType.OPTION and source == destination == 0
    assert is_sequenced(kind, source, destination) == (kind in SEQUENCED and not of_the_attachment)


def test_option_of_the_attachment_is_not_sequenced() -> None:  # 2.7
    assert not is_sequenced(PacketType.OPTION, 0, 0)
    assert is_sequenced(PacketType.OPTION, 1, 0)
    assert is_sequenced(PacketType.OPTION, 0, 1)
    assert is_sequenced(PacketType.DATA, 0, 0)
