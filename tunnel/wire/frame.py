"""Results of parsing a batch: frames for the relay, and the count of what was discarded (PROTOCOL 1.9)."""

import msgspec

from tunnel.wire.buffers import Buffer
from tunnel.wire.packet import HEADER_SIZE

__all__ = ["Discarded", "Frame"]


class Discarded(msgspec.Struct):
    """A count of what was discarded from a batch, by reason (1.9)."""

    bad_checksum: int = 0  # packets
    bad_size: int = 0  # headers that name an invalid size; each ends its batch
    truncated: int = 0  # packets or headers that run past the end of their batch
    bytes: int = 0  # discarded in total


class Frame(msgspec.Struct, gc=False):
    """A packet as the relay handles it: the fields of the header, for routing, and the whole packet as it came."""

    version: int
    type: int
    attempt: int
    source: int
    destination: int
    sequence: int
    data: Buffer

    @property
    def payload(self) -> memoryview:
        """The bytes after the header."""
        return memoryview(self.data)[HEADER_SIZE:]

    @property
    def size(self) -> int:
        """The number of bytes on the wire."""
        return len(self.data)
