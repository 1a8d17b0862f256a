"""Message sets in memory, and what all sets have in common.

A set is messages end to end. `ByteBufferMessageSet` is what producers and consumers have in hand; the other one,
`FileMessageSet`, is in `file_sets.py`. Both iterate in the same way, and both write themselves to a socket, a file or a
stream.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

from tunnel.messages.codec import Codec, compress
from tunnel.messages.message import (
    MESSAGE_BYTES_MAX,
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
    """A stream writer or transport: takes everything, later says whether there is room (`drain`)."""

    def write(self, data: memoryview, /) -> object: ...


Destination: TypeAlias = socket.socket | int | ByteSink
"""A socket, a file descriptor, or what has `write`: an asyncio writer, a tunnel's writer, a file object."""


class MessageSet(ABC):
    """Messages end to end. Iterating gives the messages unpacked, each with its offset."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Of the set, a truncated tail included."""

    @abstractmethod
    def __iter__(self) -> Iterator[MessageAndOffset]:
        """Every whole message, compressed sets unpacked. CorruptMessageError; ends quietly before a truncated tail."""

    @abstractmethod
    def shallow(self) -> Iterator[MessageAndOffset]:
        """As iterating, but compressed sets come as the one message that they are."""

    @abstractmethod
    def write_to(self, destination: Destination, offset: int = 0, size_max: int | None = None) -> int:
        """Write up to `size_max` bytes from `offset` on; how many it were: a socket may take fewer.

        The set is unchanged: nothing remembers a position. To an asyncio writer everything is written; `drain()` it.
        """

    def payloads(self) -> Iterator[bytes]:
        """The payloads alone."""
        for found in self:
            yield found.message.payload

    @property
    def valid_bytes(self) -> int:
        """How much of it is whole messages that are what was written: reads them all."""
        end = 0
        for found in self.shallow():
            end = found.next_offset
        return end

    @property
    def is_truncated(self) -> bool:
        """Whether it ends within a message, as a set does that was fetched by size."""
        return self.valid_bytes < self.size_bytes


class ByteBufferMessageSet(MessageSet):
    """A set in memory: of encoded bytes, or made `of` messages."""

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
        """A set of these payloads; with a codec, compressed as one. MessageTooLargeError before anything is encoded."""
        kept = payloads if isinstance(payloads, list) else list(payloads)
        for payload in kept:
            if len(payload) > message_bytes_max:
                check_size(payload, message_bytes_max)
        data = encode_payloads(kept)
        if codec is not Codec.NONE:
            data = encode_message(Message(compress(data, codec), codec))
        return cls(data, message_bytes_max=message_bytes_max)

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[MessageAndOffset]:
        return scan(
            self.data, message_bytes_max=self.message_bytes_max, unpacked_bytes_max=self.unpacked_bytes_max, deep=True
        )

    def shallow(self) -> Iterator[MessageAndOffset]:
        return scan(
            self.data, message_bytes_max=self.message_bytes_max, unpacked_bytes_max=self.unpacked_bytes_max, deep=False
        )

    def write_to(self, destination: Destination, offset: int = 0, size_max: int | None = None) -> int:
        start, end = bounds(self.size_bytes, offset, size_max)
        return send_bytes(destination, memoryview(self.data)[start:end])


def bounds(size_bytes: int, offset: int, size_max: int | None) -> tuple[int, int]:
    """What part of a set is meant. ValueError for what lies outside."""
    if not 0 <= offset <= size_bytes:
        raise ValueError(f"offset {offset} is not in a set of {size_bytes} bytes")
    if size_max is not None and size_max < 0:
        raise ValueError("size_max must not be negative")
    return offset, size_bytes if size_max is None else min(size_bytes, offset + size_max)


def send_bytes(destination: Destination, view: memoryview) -> int:
    """Write bytes to any destination; how many it took. A socket that takes none for now took 0."""
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
