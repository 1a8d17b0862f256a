"""Produce requests: the format in which producers send messages to a broker.

| bytes | content |
|---|---|
| 2 | request key: 0 produce, 3 multi-produce |
| 2 | only in a multi-produce: the number of groups of the following fields |
| 2 | size of the topic |
| | topic: UTF-8 |
| 4 | partition; with −1, the broker chooses |
| 4 | size of the message set |
| | message set |
"""

import asyncio
import enum
import struct
from collections.abc import AsyncIterator, Sequence

import msgspec

from tunnel.messages.errors import ChannelClosedError, MalformedFrameError
from tunnel.messages.sets.sets import ByteBufferMessageSet

__all__ = [
    "REQUEST_BYTES_MAX",
    "ProduceDecoder",
    "ProduceRequest",
    "RequestKey",
    "encode_multi_produce",
    "encode_produce",
    "read_requests",
]

REQUEST_BYTES_MAX = 100 * 1024 * 1024  # Kafka 0.7's max.socket.request.bytes
_READ_BYTES = 256 * 1024
_SHORT = struct.Struct(">H")
_PLACE = struct.Struct(">iI")  # partition and size


class RequestKey(enum.IntEnum):
    """The request keys of Kafka 0.7 that producers use."""

    PRODUCE = 0
    MULTI_PRODUCE = 3


class ProduceRequest(msgspec.Struct, gc=False):
    """Messages for one partition of one topic."""

    topic: str
    partition: int
    messages: ByteBufferMessageSet

    def encode(self) -> list[bytes]:
        """Return everything after the key, in pieces."""
        topic = self.topic.encode()
        data = self.messages.data
        return [_SHORT.pack(len(topic)), topic, _PLACE.pack(self.partition, len(data)), data]


def encode_produce(request: ProduceRequest) -> list[bytes]:
    """Encode one request, in pieces."""
    return [_SHORT.pack(RequestKey.PRODUCE), *request.encode()]


def encode_multi_produce(requests: Sequence[ProduceRequest]) -> list[bytes]:
    """Encode several requests as one, in pieces. ValueError if there are more than 65,535."""
    if len(requests) > 0xFFFF:
        raise ValueError(
            f"{len(requests)} requests in one multi-produce; at most 65535 are allowed: split them over several"
        )
    pieces = [_SHORT.pack(RequestKey.MULTI_PRODUCE), _SHORT.pack(len(requests))]
    for request in requests:
        pieces += request.encode()
    return pieces


class ProduceDecoder:
    """Cuts a stream of bytes into requests; the requests of a multi-produce come together.

    Each group is parsed once, however many pieces the request arrives in.
    """

    def __init__(self, request_bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self._request_bytes_max = request_bytes_max
        self._buffer = bytearray()
        self._groups: list[ProduceRequest] = []  # groups that have arrived of the request at the start of the buffer
        self._complete: list[list[ProduceRequest]] = []  # requests that `feed` has found and not returned yet
        self._parsed = 0  # bytes of that request that were parsed and have left the buffer
        self._left: int | None = None  # groups that are still to come; None before the request's key

    @property
    def is_between_requests(self) -> bool:
        """Whether the stream may end here."""
        return not self.held_bytes

    @property
    def held_bytes(self) -> int:
        """The bytes that have arrived of an incomplete request."""
        return len(self._buffer) + self._parsed

    def feed(self, data: bytes) -> list[list[ProduceRequest]]:
        """Return the requests that are now complete. MalformedFrameError if the key is wrong or the size too large."""
        buffer = self._buffer
        buffer += data
        position = 0
        while True:
            if self._left is None:
                begun = self._begin(position)
                if begun is None:
                    break
                self._parsed = begun - position
                position = begun
            while self._left:
                group = self._group(position)
                if group is None:
                    break
                self._groups.append(group[0])
                self._parsed += group[1] - position
                position = group[1]
                self._left -= 1
            if self._left:
                break
            self._complete.append(self._groups)
            self._groups, self._parsed, self._left = [], 0, None
        del buffer[:position]
        found, self._complete = self._complete, []
        return found

    def abandon(self) -> list[ProduceRequest]:
        """Return what has arrived and `feed` has not returned, for the caller to free. Feed the decoder no more."""
        left, self._groups = self._groups, []
        while self._complete:
            left += self._complete.pop()
        return left

    def _begin(self, start: int) -> int | None:
        """Parse the key, and the number of groups. Return the position after them, or None if they are incomplete."""
        buffer = self._buffer
        if len(buffer) - start < 2 * _SHORT.size:
            return None
        (key,) = _SHORT.unpack_from(buffer, start)
        position = start + _SHORT.size
        if key == RequestKey.MULTI_PRODUCE:
            (self._left,) = _SHORT.unpack_from(buffer, position)
            return position + _SHORT.size
        if key != RequestKey.PRODUCE:
            raise MalformedFrameError(f"request key {key}: only produce (0) and multi-produce (3) are accepted")
        self._left = 1
        return position

    def _group(self, position: int) -> tuple[ProduceRequest, int] | None:
        buffer = self._buffer
        start = position
        if len(buffer) - position < _SHORT.size:
            return None
        (topic_size,) = _SHORT.unpack_from(buffer, position)
        position += _SHORT.size
        place = position + topic_size
        if len(buffer) < place + _PLACE.size:
            return None
        partition, size = _PLACE.unpack_from(buffer, place)
        data = place + _PLACE.size
        if self._parsed + data + size - start > self._request_bytes_max:
            raise MalformedFrameError(f"the request is over {self._request_bytes_max} bytes: send smaller requests")
        if len(buffer) < data + size:
            return None
        try:
            topic = buffer[position:place].decode()
        except UnicodeDecodeError:
            raise MalformedFrameError("the topic of a request is not UTF-8") from None
        messages = ByteBufferMessageSet(bytes(memoryview(buffer)[data : data + size]))
        return ProduceRequest(topic, partition, messages), data + size


async def read_requests(
    reader: asyncio.StreamReader, *, request_bytes_max: int = REQUEST_BYTES_MAX
) -> AsyncIterator[ProduceRequest]:
    """Yield the requests of a stream until it ends. ChannelClosedError if it ends within a request."""
    decoder = ProduceDecoder(request_bytes_max)
    while data := await reader.read(_READ_BYTES):
        for requests in decoder.feed(data):
            for request in requests:
                yield request
    if not decoder.is_between_requests:
        raise ChannelClosedError("the producer closed the connection within a request")
