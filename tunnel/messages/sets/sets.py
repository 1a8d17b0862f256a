"""Message sets in memory, and the base class of all message sets.

A set is messages end to end. Producers and consumers use `ByteBufferMessageSet`; `FileMessageSet` is in `file_sets.py`.
Both are iterated in the same way, and both can be written to a socket, a file or a stream.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

from tunnel.messages.sets.codec import Codec, compress
from tunnel.messages.sets.message import (
    MESSAGE_BYTES_MAX,
    SET_MESSAGES_MAX,
    UNPACKED_BYTES_MAX,
    Message,
    MessageAndOffset,
    check_size,
    encode_message,
    encode_payloads,
    scan,
)

__all__ = ["ByteBufferMessageSet", "ByteSink", "Destination", "MessageSet", "bounds", "send_bytes"]


@runtime_checkable
class ByteSink(Protocol):
    """A stream writer or transport. It accepts everything; the caller waits for room with `drain` afterwards."""

    def write(self, data: memoryview, /) -> object: ...


Destination: TypeAlias = socket.socket | int | ByteSink
"""A socket, a file descriptor, or an object with `write`: an asyncio writer, a tunnel's writer, a file object."""


class MessageSet(ABC):
    """Messages end to end. Iterating yields each message with its position; compressed sets are unpacked."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """The size of the set, including a truncated tail."""

    @abstractmethod
    def __iter__(self) -> Iterator[MessageAndOffset]:
        """Yield every whole message; compressed sets are unpacked. A truncated tail ends the iteration silently.

        Raises CorruptMessageError at damage.
        """

    @abstractmethod
    def shallow(self) -> Iterator[MessageAndOffset]:
        """Yield every whole message, with each compressed set as one message."""

    @abstractmethod
    def write_to(self, destination: Destination, offset: int = 0, size_max: int | None = None) -> int:
        """Write up to `size_max` bytes from `offset` on; return the number written. A socket may take fewer.

        The set does not remember a position. An asyncio writer takes everything; the caller must then `drain()` it.
        """

    def payloads(self) -> Iterator[bytes]:
        """Yield the payload of every message."""
        for found in self:
            yield found.message.payload

    @property
    def valid_bytes(self) -> int:
        """The number of bytes of whole messages. Reads and checks all of them; CorruptMessageError at damage."""
        end = 0
        for found in self.shallow():
            end = found.next_offset
        return end

    @property
    def is_truncated(self) -> bool:
        """Whether the set ends within a message, as a set fetched by size may."""
        return self.valid_bytes < self.size_bytes


class ByteBufferMessageSet(MessageSet):
    """A set in memory, from encoded bytes or, with `of`, from payloads."""

    def __init__(
        self,
        data: bytes,
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> None:
        self.data = data
        self.message_bytes_max = message_bytes_max
        self.unpacked_bytes_max = unpacked_bytes_max

    @classmethod
    def of(
        cls, payloads: Iterable[bytes], *, codec: Codec = Codec.NONE, message_bytes_max: int = MESSAGE_BYTES_MAX
    ) -> ByteBufferMessageSet:
        """Return a set of these payloads, compressed as a whole if there is a codec.

        A set that has more bytes or messages than receivers unpack becomes several compressed messages. A single
        payload is never divided. MessageTooLargeError if a payload is over the limit.
        """
        kept = payloads if isinstance(payloads, list) else list(payloads)
        if kept and max(map(len, kept)) > message_bytes_max:
            for payload in kept:
                check_size(payload, message_bytes_max)
        data = encode_payloads(kept) if codec is Codec.NONE else _compressed(kept, codec)
        return cls(data, message_bytes_max=message_bytes_max)

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[MessageAndOffset]:
        return scan(self.data, message_bytes_max=self.message_bytes_max, unpacked_bytes_max=self.unpacked_bytes_max)

    def shallow(self) -> Iterator[MessageAndOffset]:
        return scan(
            self.data, message_bytes_max=self.message_bytes_max, unpacked_bytes_max=self.unpacked_bytes_max, deep=False
        )

    def write_to(self, destination: Destination, offset: int = 0, size_max: int | None = None) -> int:
        start, end = bounds(self.size_bytes, offset, size_max)
        return send_bytes(destination, memoryview(self.data)[start:end])


def _compressed(payloads: list[bytes], codec: Codec) -> bytes:
    """Return these payloads in one or more compressed messages, so that receivers can unpack each message.

    A single payload is never divided, even if it is larger than receivers unpack.
    """
    data = encode_payloads(payloads)
    if (len(data) > UNPACKED_BYTES_MAX or len(payloads) > SET_MESSAGES_MAX) and len(payloads) > 1:
        half = len(payloads) // 2
        return _compressed(payloads[:half], codec) + _compressed(payloads[half:], codec)
    return encode_message(Message(compress(data, codec), codec))


def bounds(size_bytes: int, offset: int, size_max: int | None) -> tuple[int, int]:
    """Return the start and end of a part of a set. ValueError if `offset` lies outside or `size_max` is negative."""
    if not 0 <= offset <= size_bytes:
        raise ValueError(f"offset {offset} is not in a set of {size_bytes} bytes")
    if size_max is not None and size_max < 0:
        raise ValueError(f"size_max is {size_max}, it must not be negative")
    return offset, size_bytes if size_max is None else min(size_bytes, offset + size_max)


def send_bytes(destination: Destination, view: memoryview) -> int:
    """Write bytes to any destination, and return the number it took: 0 if a socket takes none for now."""
    if not len(view):
        return 0
    if isinstance(destination, socket.socket):
        try:
            return destination.send(view)
        except BlockingIOError:
            return 0
    if isinstance(destination, int):
        return os.write(destination, view)
    destination.write(view)
    return len(view)
