"""Section 1, "Packet format": the header of 24 bytes, in six words of 32 bits.

The document has 16 bits of version and 16 of packet type. Here the type has only eight of these 16, and the other eight
hold the number of the attempt: see docs/REFERENCES.md.

Prints:
    version 1
    packet type 4 (DATA), attempt 2
    size 29: 24 bytes of header and 5 of payload
    source connection id 0x00001111
    destination connection id 0x00002222
    packet sequence number 77
    a damaged packet is discarded: bad_checksum=1
"""

import struct

from tunnel.wire import Packet, PacketType, encode_packet, parse_packets


def main() -> None:
    packet = Packet(PacketType.DATA, 0x1111, 0x2222, 77, b"hello", attempt=2)
    data = bytearray(b"".join(bytes(part) for part in encode_packet(packet)))
    (packet,), _ = parse_packets(bytes(data))
    version, _, size, source, destination, sequence, _ = struct.unpack_from(">HHIIIII", data)
    print("version", version)
    print(f"packet type {packet.type} ({PacketType(packet.type).name}), attempt {packet.attempt}")
    print(f"size {size}: 24 bytes of header and {len(packet.payload)} of payload")
    print(f"source connection id {source:#010x}")
    print(f"destination connection id {destination:#010x}")
    print("packet sequence number", sequence)
    data[-1] ^= 1
    packets, discarded = parse_packets(bytes(data))
    assert not packets
    assert discarded is not None
    print(f"a damaged packet is discarded: bad_checksum={discarded.bad_checksum}")


if __name__ == "__main__":
    main()
