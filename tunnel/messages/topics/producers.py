"""The synchronous producer, which sends before it returns, and the encoders that turn values into messages.

A client passes `ProducerData`. An encoder turns each value into a payload; the payloads form a message set, and the set
goes into a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tunnel.messages.errors import ChannelClosedError
from tunnel.messages.sets.codec import Codec
from tunnel.messages.sets.message import MESSAGE_BYTES_MAX
from tunnel.messages.sets.sets import ByteBufferMessageSet
from tunnel.messages.topics.requests import ProduceRequest, encode_multi_produce, encode_produce

__all__ = [
    "BytesEncoder",
    "Encoder",
    "JsonEncoder",
    "Producer",
    "ProducerData",
    "RequestMaker",
    "StringEncoder",
    "SyncProducer",
]


class Encoder(Protocol):
    """Turns a client's value into the payload of a message."""

    def encode(self, value: Any) -> bytes:
        """Return the payload for a value. Raise any error for a value that cannot be sent; then it is not sent."""


class BytesEncoder:
    """Passes on values that are payloads already."""

    def encode(self, value: bytes) -> bytes:
        return value


class StringEncoder:
    """Encodes text as UTF-8."""

    def encode(self, value: str) -> bytes:
        return value.encode()


class JsonEncoder:
    """Encodes any value that has a JSON form."""

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)


class ProducerData(msgspec.Struct, gc=False):
    """Values for one partition of one topic."""

    topic: str
    values: Sequence[Any]
    partition: int = 0


class RequestMaker:
    """Turns values into produce requests, all with the same encoder, codec and limit."""

    def __init__(
        self,
        encoder: Encoder | None = None,
        codec: Codec = Codec.NONE,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.encoder = encoder or BytesEncoder()
        self.codec = codec
        self.message_bytes_max = message_bytes_max

    def request(self, topic: str, partition: int, payloads: list[bytes]) -> ProduceRequest:
        """Check these payloads, and return their request."""
        if not 0 < len(topic.encode()) <= 0x7FFF:
            raise ValueError(f"a topic has 1 to 32767 bytes, this one {len(topic.encode())}: {topic[:100]!r}")
        messages = ByteBufferMessageSet.of(payloads, codec=self.codec, message_bytes_max=self.message_bytes_max)
        return ProduceRequest(topic, partition, messages)

    def encode(self, data: Sequence[ProducerData]) -> bytes:
        """Encode values for one or more topics and partitions, as one request or multi-request."""
        encode = self.encoder.encode
        requests = [self.request(each.topic, each.partition, [encode(value) for value in each.values]) for each in data]
        return encode_requests(requests)


class Producer(RequestMaker):
    """A request maker that also sends. `AsyncProducer` works with any of its subclasses."""

    async def send_requests(self, requests: Sequence[ProduceRequest]) -> None:
        """Send encoded requests."""
        raise NotImplementedError


class SyncProducer(Producer):
    """Sends on a stream, and returns when the data is written and the stream has room for more.

    With `acknowledged`, it returns when the peer's endpoint has acknowledged the data. Only the streams of a tunnel
    can tell that.
    """

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        *,
        encoder: Encoder | None = None,
        codec: Codec = Codec.NONE,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        acknowledged: bool = False,
    ) -> None:
        super().__init__(encoder, codec, message_bytes_max)
        self._writer = writer
        if acknowledged and not hasattr(writer, "flush"):
            raise ValueError("this stream cannot tell what is acknowledged: use one of a tunnel, or acknowledged=False")
        self._wait = writer.flush if acknowledged else writer.drain  # type: ignore[attr-defined]

    async def send(self, topic: str, *values: Any, partition: int = 0) -> None:
        """Encode, check and send these values as one set. If a value is too large, nothing is written."""
        await self.send_data(ProducerData(topic, values, partition))

    async def send_data(self, *data: ProducerData) -> None:
        """Send values for one or more topics and partitions; several of them go into one multi-request."""
        await self._send(self.encode(data))

    async def send_requests(self, requests: Sequence[ProduceRequest]) -> None:
        """Send encoded requests."""
        await self._send(encode_requests(requests))

    async def _send(self, encoded: bytes) -> None:
        if encoded:
            if self._writer.is_closing():  # asyncio would drop the data, and uvloop would raise a RuntimeError
                raise ChannelClosedError("the connection has ended: open a new one; what was sent may be lost")
            self._writer.write(encoded)
            await self._wait()


def encode_requests(requests: Sequence[ProduceRequest]) -> bytes:
    """Encode one request, or several as a multi-request; no bytes for none."""
    if not requests:
        return b""
    return b"".join(encode_produce(requests[0]) if len(requests) == 1 else encode_multi_produce(requests))
