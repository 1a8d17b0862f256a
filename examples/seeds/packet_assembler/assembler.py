"""Sections "disassembling" and "assembling": a body in parts of 1,024 bytes, each with the next correlation id.

This is option 1 of the document: the body is encoded once, and parts are slices of it. Every part repeats the header. A
flag marks the last part. A packet of one part has the correlation id -1. The receiver joins the parts, and passes the
whole packet to the handler; a large body is joined in a file.

Prints:
    part 0: bytes 0 to 1023
    part 1: bytes 1024 to 2047
    part 2: bytes 2048 to 2499, the last
    the handler got one packet of 2500 bytes for target 7
    a single packet has the correlation id -1
"""

from collections.abc import Sequence

from tunnel.messages import Packet, PacketAssembler, SpooledBody
from tunnel.messages.packets.bodies import Done
from tunnel.messages.packets.parts import PART_BYTES_MIN, PartDecoder

BODY = bytes(number % 251 for number in range(2500))


class Host:
    """The owner of an assembler: here, the handler of all packets."""

    def deliver(self, packet: Packet) -> None:
        assert packet.data == BODY
        print(f"the handler got one packet of {len(packet.data)} bytes for target {packet.target}")

    def refuse(self, message_id: int, reason: str) -> None:
        raise AssertionError(reason)

    def taken(self, size: int) -> None: ...


class Spool:
    """Stands in for the writer of large bodies to disk; the body of this program is small."""

    def write(self, body: SpooledBody, pieces: Sequence[memoryview], done: Done) -> None: ...

    def discard(self, body: SpooledBody) -> None: ...

    def close(self) -> None: ...


def main() -> None:
    assembler = PacketAssembler(Host(), Spool())
    decoder = PartDecoder()
    sending = assembler.disassemble(Packet(BODY, target=7), lambda: None)
    while not sending.is_done:
        header, body = sending.next_part(PART_BYTES_MIN) or (b"", memoryview(b""))
        for part in decoder.feed(header + bytes(body)):
            start = part.correlation_id * PART_BYTES_MIN
            last = ", the last" if part.last else ""
            print(f"part {part.correlation_id}: bytes {start} to {start + part.size - 1}{last}")
            assembler.assemble(part)
    single = assembler.disassemble(Packet(b"small", target=7), lambda: None)
    header, body = single.next_part(PART_BYTES_MIN) or (b"", memoryview(b""))
    (part,) = decoder.feed(header + bytes(body))
    print("a single packet has the correlation id", part.correlation_id)


if __name__ == "__main__":
    main()
