"""CRC-32C (Castagnoli), the checksum of packets, envelopes and link headers (PROTOCOL 1.1, 7.1, 8.1)."""

from crc32c import crc32c

from tunnel.wire.buffers import Buffer

__all__ = ["checksum"]


def checksum(*parts: Buffer) -> int:
    """Return the CRC-32C of the parts in order, as if they were one buffer. Nothing is copied."""
    value = 0
    for part in parts:
        value = crc32c(part, value)
    return value
