"""The packet: its types and its fields (section 1 of docs/PROTOCOL.md)."""

import enum

import msgspec

from tunnel.wire.buffers import Buffer

__all__ = [
    "FAREWELLS",
    "HEADER_SIZE",
    "IN_STREAM",
    "PACKET_SIZE_MAX",
    "PACKET_TRAITS",
    "SEQUENCED",
    "TO_SOURCE",
    "UNANSWERED",
    "VERSION",
    "Copies",
    "Packet",
    "PacketTraits",
    "PacketType",
    "is_sequenced",
    "types_kept",
]

HEADER_SIZE = 24  # bytes; 1.1
VERSION = 1  # 1.1
PACKET_SIZE_MAX = 16 * 2**20  # bytes, header included; 1.3


class PacketType(enum.IntEnum):
    """The packet types of 1.5. Their numbers never change. Relays forward a type that is not listed here (1.4)."""

    CONNECT = 1
    ACCEPTED = 2
    REJECTED = 3
    DATA = 4
    CLOSE = 5
    ACK = 6
    SHUTDOWN = 7
    ABORT = 9
    OPTION = 10
    LISTEN_STATE = 11
    NOOP = 12
    FINISH = 13
    PING = 14
    PONG = 15
    PROBE = 16
    DROPPED = 17
    EDGE = 18
    LEAVE = 19


class Copies(enum.Enum):
    """The control packets of one type that the relay keeps for each direction of a route (9.2)."""

    EACH = "each"  # the newest one with each sequence number
    NEWEST = "newest"  # one
    SEVERAL = "several"  # the newest eight, because those on different lanes can overtake each other
    FIRST = "first"  # one: it names the reason, and a later one may only say that the connection is unknown by now


class PacketTraits(msgspec.Struct, frozen=True, kw_only=True):
    """How endpoints and the relay treat the packets of one type. The defaults hold for types that they do not know."""

    sequenced: bool = False  # takes a sequence number on a connection (1.5)
    in_stream: bool = False  # keeps its place among the data at the relay (9.2)
    copies: Copies = Copies.EACH  # of packets that are not in the stream
    answered: bool = True  # an endpoint without the connection (3.9), and a relay without the route (6.7), answer it
    to_source: bool = False  # its source is the id of the endpoint that gets it (2.2, 2.3)
    farewell: bool = False  # ends the connection (5.7)


PACKET_TRAITS: dict[PacketType, PacketTraits] = {
    PacketType.CONNECT: PacketTraits(sequenced=True, copies=Copies.NEWEST),
    PacketType.ACCEPTED: PacketTraits(sequenced=True, copies=Copies.NEWEST, to_source=True),
    PacketType.REJECTED: PacketTraits(copies=Copies.NEWEST, answered=False, to_source=True),
    PacketType.DATA: PacketTraits(sequenced=True, in_stream=True),
    # The acknowledgement of a CLOSE that overtook data would make the sender believe that all of that data was lost.
    PacketType.CLOSE: PacketTraits(sequenced=True, in_stream=True),
    PacketType.ACK: PacketTraits(copies=Copies.SEVERAL),
    PacketType.SHUTDOWN: PacketTraits(copies=Copies.NEWEST, answered=False, farewell=True),  # 5.7 answers it
    PacketType.ABORT: PacketTraits(copies=Copies.FIRST, answered=False, farewell=True),
    PacketType.OPTION: PacketTraits(sequenced=True, in_stream=True),  # not when it concerns the attachment (2.7)
    PacketType.LISTEN_STATE: PacketTraits(copies=Copies.NEWEST),
    PacketType.NOOP: PacketTraits(copies=Copies.NEWEST, answered=False),
    PacketType.FINISH: PacketTraits(sequenced=True, in_stream=True),
    PacketType.PING: PacketTraits(copies=Copies.NEWEST),
    PacketType.PONG: PacketTraits(copies=Copies.NEWEST, answered=False),
    PacketType.PROBE: PacketTraits(copies=Copies.NEWEST),
    PacketType.DROPPED: PacketTraits(copies=Copies.NEWEST, answered=False),
    PacketType.EDGE: PacketTraits(copies=Copies.NEWEST, answered=False),
    PacketType.LEAVE: PacketTraits(copies=Copies.NEWEST, answered=False),
}
"""The one place that says how each type is treated. A type without a row is treated as an unknown one."""

_ROWS = [(int(kind), traits) for kind, traits in PACKET_TRAITS.items()]

# Sets of types, for tests with `in` on the data path.
SEQUENCED: frozenset[int] = frozenset(kind for kind, traits in _ROWS if traits.sequenced)
IN_STREAM: frozenset[int] = frozenset(kind for kind, traits in _ROWS if traits.in_stream)
UNANSWERED: frozenset[int] = frozenset(kind for kind, traits in _ROWS if not traits.answered)
TO_SOURCE: frozenset[int] = frozenset(kind for kind, traits in _ROWS if traits.to_source)
FAREWELLS: frozenset[int] = frozenset(kind for kind, traits in _ROWS if traits.farewell)


def types_kept(*copies: Copies) -> frozenset[int]:
    """Return the types of control packets of which the relay keeps these copies."""
    return frozenset(kind for kind, traits in _ROWS if not traits.in_stream and traits.copies in copies)


class Packet(msgspec.Struct, gc=False):
    """One packet. Ids and sequence number are as on the wire (32 bits). The checksum exists only on the wire."""

    type: int
    source: int
    destination: int
    sequence: int
    payload: Buffer = b""
    attempt: int = 0
    version: int = VERSION

    @property
    def size(self) -> int:
        """The number of bytes on the wire."""
        return HEADER_SIZE + len(self.payload)


def is_sequenced(kind: int, source: int, destination: int) -> bool:
    """Return whether a packet of type `kind` between these ids takes a sequence number (1.5, 2.7)."""
    return kind in SEQUENCED and (kind != PacketType.OPTION or source != 0 or destination != 0)
