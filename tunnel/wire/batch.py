"""The parser of batches. It accepts any bytes, never fails, and takes linear time (PROTOCOL 1.9).

An endpoint parses a batch into packets, the relay into frames.
"""

import struct
from collections.abc import Collection

from crc32c import crc32c

from tunnel.wire.buffers import Buffer
from tunnel.wire.encoding import whole_packet
from tunnel.wire.frame import Discarded, Frame
from tunnel.wire.packet import HEADER_SIZE, PACKET_SIZE_MAX, Packet

__all__ = ["batch_end", "frame_of", "parse_frames", "parse_packets", "readdress"]

_unpack_header = struct.Struct("!HBBIIIII").unpack_from  # version, attempt, type, size, ids, sequence, checksum (1.1)
_pack_unsigned_header = struct.Struct("!HBBIIII4x").pack

# For packets below this size, joining header and payload costs less than a second call of crc32c (measured).
_JOIN_BYTES = 2048


def parse_packets(data: Buffer) -> tuple[list[Packet], Discarded | None]:
    """Return the whole valid packets in `data`, in order, and a count of what was discarded (None: nothing).

    Payloads are slices of `data`, not copies: a caller that keeps one keeps the whole body in memory.
    """
    unpack, unsigned, crc, packet = _unpack_header, _pack_unsigned_header, crc32c, Packet
    packets: list[Packet] = []
    add = packets.append
    bad_checksum = bad_bytes = offset = 0
    end = len(data)
    last = end - HEADER_SIZE  # the last offset at which a header can start
    view = memoryview(data)
    while offset <= last:
        version, attempt, type_, size, source, destination, sequence, value = unpack(data, offset)
        stop = offset + size
        if stop > end or not 24 <= size <= 16777216:
            break
        payload = view[offset + 24 : stop]
        header = unsigned(version, attempt, type_, size, source, destination, sequence)
        if (crc(header + payload) if size < _JOIN_BYTES else crc(payload, crc(header))) == value:
            add(packet(type_, source, destination, sequence, payload, attempt, version))
        else:
            bad_checksum += 1
            bad_bytes += size
        offset = stop
    if offset == end and not bad_checksum:
        return packets, None
    return packets, _discarded(view, offset, bad_checksum, bad_bytes)


def parse_frames(data: Buffer) -> tuple[list[Frame], Discarded | None]:
    """Do the same as `parse_packets` for the relay. Packets of unknown types and versions become frames too (1.4)."""
    # The loop is repeated here because sharing it would take a call per packet, which would cost the relay a fifth of
    # its rate of small packets.
    unpack, unsigned, crc, frame = _unpack_header, _pack_unsigned_header, crc32c, Frame
    frames: list[Frame] = []
    add = frames.append
    bad_checksum = bad_bytes = offset = 0
    end = len(data)
    last = end - HEADER_SIZE
    view = memoryview(data)
    while offset <= last:
        version, attempt, type_, size, source, destination, sequence, value = unpack(data, offset)
        stop = offset + size
        if stop > end or not 24 <= size <= 16777216:
            break
        header = unsigned(version, attempt, type_, size, source, destination, sequence)
        payload = view[offset + 24 : stop]
        if (crc(header + payload) if size < _JOIN_BYTES else crc(payload, crc(header))) == value:
            add(frame(version, type_, attempt, source, destination, sequence, view[offset:stop]))
        else:
            bad_checksum += 1
            bad_bytes += size
        offset = stop
    if offset == end and not bad_checksum:
        return frames, None
    return frames, _discarded(view, offset, bad_checksum, bad_bytes)


def batch_end(data: Buffer, offset: int, packets_max: int, few: Collection[int] = (), few_max: int = 0) -> int:
    """Return the end of the first `packets_max` packets from `offset` on, for a caller that parses a batch in parts.
    It lies after the first `few_max` packets of the types in `few`, if that is earlier.

    Return the end of the data if fewer packets follow, or if a size is invalid or runs past the end.
    """
    unpack, end = _unpack_header, len(data)
    last = end - HEADER_SIZE
    for _ in range(packets_max):
        if offset > last:
            return end
        _, _, kind, size, *_ = unpack(data, offset)
        if not HEADER_SIZE <= size <= end - offset:
            return end
        offset += size
        if kind in few:
            few_max -= 1
            if not few_max:
                return offset
    return offset


def _discarded(view: memoryview, offset: int, bad_checksum: int, bad_bytes: int) -> Discarded:
    """Count what was discarded from a batch whose parsing ended at `offset`."""
    rest = len(view) - offset
    bad_size = 0
    if rest >= HEADER_SIZE:
        size = _unpack_header(view, offset)[3]
        bad_size = int(not HEADER_SIZE <= size <= PACKET_SIZE_MAX)
    truncated = int(rest > 0 and not bad_size)
    return Discarded(bad_checksum, bad_size, truncated, bad_bytes + rest)


def frame_of(packet: Packet) -> Frame:
    """Encode a packet that the relay itself sends, and return it as a frame."""
    data = whole_packet(packet)
    return Frame(packet.version, packet.type, packet.attempt, packet.source, packet.destination, packet.sequence, data)


def readdress(frame: Frame, *, destination: int) -> Frame:
    """Return a copy of the frame with another destination id and the checksum that fits it (3.6)."""
    return frame_of(
        Packet(frame.type, frame.source, destination, frame.sequence, frame.payload, frame.attempt, frame.version)
    )
