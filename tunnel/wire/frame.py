"""What parsing a batch gives besides packets: frames for the relay, and the account of what was thrown away (1.9)."""

import msgspec

from tunnel.wire.buffers import Buffer
from tunnel.wire.packet import HEADER_SIZE

__all__ = ["Discarded", "Frame"]


class Discarded(msgspec.Struct):
    """What a batch held besides whole valid packets, by reason (1.9)."""

    bad_checksum: int = 0  # packets
    bad_size: int = 0  # headers that name an invalid size; each ends its batch
    truncated: int = 0  # packets or headers that run past the end of their batch
    bytes: int = 0  # all that was thrown away


class Frame(msgspec.Struct, gc=False):
    """A packet as the relay moves it: the header's fields for routing, and the whole packet as it came."""

    version: int
    type: int
    attempt: int
    source: int
    destination: int
    sequence: int
    data: Buffer

    @property
    def payload(self) -> memoryview:
        """What is behind the header."""
        return memoryview(self.data)[HEADER_SIZE:]

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return len(self.data)
