"""Clauses 1.1 to 1.3: the header, the checksum, the size."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import packets
from tunnel.wire.checksum import checksum
from tunnel.wire.encoding import encode_packet, encode_packets, whole_packet
from tunnel.wire.packet import HEADER_SIZE, PACKET_SIZE_MAX, Packet, PacketType


def reference(packet: Packet) -> bytes:
    """Encode the packet as clause 1.1 defines it, written for clarity and not for speed."""
    size = 24 + len(packet.payload)
    fields = (packet.version, packet.attempt << 8 | packet.type, size)
    head = struct.pack("!HHIIII", *fields, packet.source, packet.destination, packet.sequence)
    value = checksum(head, bytes(4), packet.payload)
    return head + struct.pack("!I", value) + bytes(packet.payload)


@given(packets)
def test_layout_and_checksum_are_those_of_the_protocol(packet: Packet) -> None:  # 1.1
    assert b"".join(encode_packet(packet)) == whole_packet(packet) == reference(packet)


@given(st.lists(packets, max_size=8))
def test_packets_are_encoded_one_after_the_other(many: list[Packet]) -> None:
    assert b"".join(encode_packets(many)) == b"".join(map(reference, many))


def test_small_packets_share_a_buffer_and_large_payloads_are_not_copied() -> None:
    large = memoryview(bytes(5000))
    small = Packet(PacketType.PING, 1, 2, 0, b"ping")
    buffers = encode_packets([small, small, Packet(PacketType.DATA, 1, 2, 3, large), small])
    assert [len(buffer) for buffer in buffers] == [28 + 28 + 24, 5000, 28]
    assert buffers[1] is large


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_payload_may_be_any_kind_of_buffer(length: int, kind: type[bytes]) -> None:
    payload = b"p" * length
    assert whole_packet(Packet(4, 1, 2, 3, kind(payload))) == reference(Packet(4, 1, 2, 3, payload))


def test_no_packets_give_no_buffers() -> None:
    assert encode_packets([]) == []


def test_the_largest_packet_has_16_mib() -> None:  # 1.3
    payload = bytes(PACKET_SIZE_MAX - HEADER_SIZE)
    assert sum(map(len, encode_packet(Packet(4, 1, 2, 3, payload)))) == 16_777_216
    with pytest.raises(ValueError, match="larger than"):
        encode_packet(Packet(4, 1, 2, 3, payload + b"x"))


@pytest.mark.parametrize(
    "packet",
    [
        Packet(256, 1, 2, 3),
        Packet(4, 2**32, 2, 3),
        Packet(4, 1, -1, 3),
        Packet(4, 1, 2, 2**32),
        Packet(4, 1, 2, 3, b"", 256),
        Packet(4, 1, 2, 3, bytes(2000), 0, 2**16),
    ],
)
def test_a_field_that_does_not_fit_raises(packet: Packet) -> None:
    with pytest.raises(ValueError, match="does not fit its place"):
        encode_packet(packet)
