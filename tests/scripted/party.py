"""A connection as a script names it: its ids, its first sequence numbers, and the bytes of both directions."""

from dataclasses import dataclass, field
from random import Random

from xxhash import xxh3_128

from tunnel.core import Connection
from tunnel.wire import Target, distance, wrap

__all__ = ["Party", "digest_of", "stream"]

_BLOCK = Random(0).randbytes(65_521)  # a prime length, so that packets of one size have different bytes


def stream(offset: int, size: int) -> bytes:
    """Return `size` bytes, from `offset` on, of the stream that every script writes in both directions."""
    start = offset % len(_BLOCK)
    copies = (start + size) // len(_BLOCK) + 1
    return (_BLOCK * copies)[start : start + size]


def digest_of(length: int) -> bytes:
    """Return the XXH3-128 of the first `length` bytes of the stream."""
    return xxh3_128(stream(0, length)).digest()


@dataclass
class Party:
    """`own` is the endpoint under test, `peer` the other one. In scripts, numbers count from CONNECT and ACCEPTED,
    which are 0; this class converts between these numbers and those on the wire."""

    name: str
    peer_id: int
    peer_base: int
    route_key: bytes
    target: Target
    initiator: bool
    connection: Connection | None = None
    peer_numbers: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset and size of the peer's packets
    sent: dict[int, tuple[int, bytes, int]] = field(default_factory=dict)  # our packets: type, payload, attempts
    written: int = 0  # bytes of our stream in packets that were sent
    read: int = 0

    @property
    def own_id(self) -> int:
        """Our connection id, 0 until it is known."""
        return 0 if self.connection is None else self.connection.id

    def live(self) -> Connection:
        """Return the connection; raise ValueError before it exists."""
        if self.connection is None:
            raise ValueError(f"the endpoint has no connection {self.name} yet")
        return self.connection

    def own_sequence(self, number: int) -> int:
        """Return the number on the wire of our packet with this number."""
        return wrap(self.live().identity.first_sequence + number)

    def own_number(self, wire: int) -> int:
        """Return the number, as scripts count, of our packet with this number on the wire."""
        return distance(wrap(self.live().identity.first_sequence), wire)

    def peer_sequence(self, number: int) -> int:
        """Return the number on the wire of the peer's packet with this number."""
        return wrap(self.peer_base + number)

    def peer_number(self, wire: int) -> int:
        """Return the number, as scripts count, of the peer's packet with this number on the wire."""
        return distance(wrap(self.peer_base), wire)

    def place(self, number: int, size: int | None) -> tuple[int, int]:
        """Return offset and size of the peer's packet with that number. Earlier packets that the script has not
        mentioned are taken to have its size; a packet that was mentioned keeps its place, unless its size changes."""
        known = self.peer_numbers.get(number)
        if known is not None and size in (None, known[1]):
            return known
        if size is None:
            raise ValueError(f"packet {number} needs a length")
        lower = [other for other in self.peer_numbers if other < number]
        before = max(lower, default=0)
        offset = sum(self.peer_numbers[before]) if lower else 0
        self.peer_numbers[number] = (offset + (number - before - 1) * size, size)
        return self.peer_numbers[number]

    def peer_length(self, number: int) -> int:
        """Return the number of bytes of the peer's stream before that packet."""
        return max((sum(place) for other, place in self.peer_numbers.items() if other < number), default=0)
