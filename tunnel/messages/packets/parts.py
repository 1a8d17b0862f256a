"""Parts of packets: the header of a part, and the decoder that cuts a stream into parts.

| bytes | content |
|---|---|
| 4 | length of everything that follows |
| 1 | type: 1 to 15 belong to this layer, 16 to 255 to applications |
| 8 | response target: where an answer should go; 0 for none |
| 8 | target: selects the handler |
| 8 | executor id: packets of one executor id are handled one after the other |
| 8 | message id: the message, of those in this direction, to which the part belongs |
| 4 | correlation id: index of the part, or −1 for a message in one part |
| 1 | 1 in the last part, otherwise 0 |
| length − 38 | this part of the body |
"""

import enum
import struct
from collections import deque

import msgspec

from tunnel.messages.errors import MalformedFrameError

__all__ = [
    "APPLICATION_TYPE_MIN",
    "PART_BYTES_MAX",
    "PART_BYTES_MIN",
    "PART_HEADER_BYTES",
    "SINGLE",
    "Part",
    "PartDecoder",
    "PartType",
    "encode_part_header",
]

_HEADER = struct.Struct(">IBqqqqiB")
PART_HEADER_BYTES = _HEADER.size
_LENGTH_BYTES = 4
_FIXED_BYTES = PART_HEADER_BYTES - _LENGTH_BYTES

PART_BYTES_MIN = 1024  # the size of a part in the packet-assembler document
PART_BYTES_MAX = 256 * 1024  # the largest payload of a tunnel's packet: a larger part would take several
APPLICATION_TYPE_MIN = 16
SINGLE = -1  # correlation id of a message in one part


class PartType(enum.IntEnum):
    """The types of parts that this layer itself sends to its peer. Types from 16 on belong to applications."""

    PING = 1
    PONG = 2
    RECEIVED = 3
    """The receiver's total of bytes of split messages that it has taken; it paces the sender."""
    CANCEL = 4
    """The sender gives a message up, perhaps because of REFUSE. No further part of it follows."""
    REFUSE = 5
    """The receiver refuses the rest of a message; the body says why."""


class Part(msgspec.Struct, gc=False):
    """One part. `payload` is a list of pieces as they were read; join them only if necessary, since that copies."""

    type: int
    response_target: int
    target: int
    executor_id: int
    message_id: int
    correlation_id: int
    last: bool
    size: int = 0
    payload: list[memoryview] = []

    def body(self) -> bytes:
        """Return the payload in one piece."""
        return b"".join(self.payload)


def encode_part_header(part: Part, size: int) -> bytes:
    """Return the header of a part whose payload has `size` bytes."""
    return _HEADER.pack(
        size + _FIXED_BYTES,
        part.type,
        part.response_target,
        part.target,
        part.executor_id,
        part.message_id,
        part.correlation_id,
        part.last,
    )


class PartDecoder:
    """Cuts a stream of bytes into parts. It keeps pieces as they were read, and allocates no memory because of a length
    that a header states."""

    def __init__(self, part_bytes_max: int = PART_BYTES_MAX) -> None:
        self._part_bytes_max = part_bytes_max
        self._header = b""
        self._part: Part | None = None
        self._missing = 0

    @property
    def is_between_parts(self) -> bool:
        """Whether the stream may end here."""
        return self._part is None and not self._header

    def feed(self, data: bytes) -> deque[Part]:
        """Return the parts that are now complete. MalformedFrameError if this is not a stream of parts."""
        found: deque[Part] = deque()
        view = memoryview(data)
        position, size = 0, len(data)
        while position < size or (self._part is not None and not self._missing):
            if self._part is None:
                wanted = PART_HEADER_BYTES - len(self._header)
                piece = data[position : position + wanted]
                position += len(piece)
                self._header += piece
                if len(piece) == wanted:
                    self._begin(self._header)
                    self._header = b""
                continue
            taken = min(self._missing, size - position)
            if taken:
                self._part.payload.append(view[position : position + taken])
                position += taken
                self._missing -= taken
            if not self._missing:
                found.append(self._part)
                self._part = None
        return found

    def _begin(self, header: bytes) -> None:
        length, kind, response_target, target, executor_id, message_id, correlation_id, last = _HEADER.unpack(header)
        size = length - _FIXED_BYTES
        if not 0 <= size <= self._part_bytes_max or last > 1 or correlation_id < SINGLE or not kind:
            raise MalformedFrameError(
                f"not a part: length {length}, type {kind}, correlation id {correlation_id}; "
                "check that the peer uses a MessageSession"
            )
        if correlation_id == SINGLE and not last:
            raise MalformedFrameError("not a part: a single part that is not the last")
        self._missing = size
        self._part = Part(kind, response_target, target, executor_id, message_id, correlation_id, bool(last), size, [])
