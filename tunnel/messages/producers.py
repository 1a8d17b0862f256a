"""Producers that send before they return, and what turns a client's data into messages.

`ProducerData` is what a client has; an encoder makes payloads of it; those become a message set, and that a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tunnel.messages.codec import Codec
from tunnel.messages.message import MESSAGE_BYTES_MAX
from tunnel.messages.requests import ProduceRequest, encode_multi_produce, encode_produce
from tunnel.messages.sets import ByteBufferMessageSet

__all__ = ["BytesEncoder", "Encoder", "JsonEncoder", "ProducerData", "StringEncoder", "SyncProducer"]


class Encoder(Protocol):
    """Turns a client's value into the payload of a message."""

    def encode(self, value: Any) -> bytes:
        """Raise what you like for a value that cannot be sent: nothing is sent then."""


class BytesEncoder:
    """For values that are payloads already."""

    def encode(self, value: bytes) -> bytes:
        return value


class StringEncoder:
    """Text as UTF-8."""

    def encode(self, value: str) -> bytes:
        return value.encode()


class JsonEncoder:
    """Anything that has a JSON form."""

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)


class ProducerData(msgspec.Struct, gc=False):
    """Values for one partition of one topic."""

    topic: str
    values: Sequence[Any]
    partition: int = 0


class SyncProducer:
    """Sends on a stream, and returns when it is sent: written, with room for more; or `acknowledged` by the peer's
    endpoint, where the stream can tell (that of a tunnel can)."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        *,
        encoder: Encoder | None = None,
        codec: Codec = Codec.NONE,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        acknowledged: bool = False,
    ) -> None:
        self.encoder = encoder or BytesEncoder()
        self.codec = codec
        self.message_bytes_max = message_bytes_max
        self._writer = writer
        if acknowledged and not hasattr(writer, "flush"):
            raise ValueError("this stream cannot tell what is acknowledged: use one of a tunnel")
        self._wait = writer.flush if acknowledged else writer.drain  # type: ignore[attr-defined]

    async def send(self, topic: str, *values: Any, partition: int = 0) -> None:
        """Encode, check and send these values as one set. MessageTooLargeError before anything is written."""
        await self.send_data(ProducerData(topic, values, partition))

    async def send_data(self, *data: ProducerData) -> None:
        """Send values for several partitions and topics, as one multi-request if they are several."""
        encode = self.encoder.encode
        await self.send_requests(
            [self.request(each.topic, each.partition, [encode(value) for value in each.values]) for each in data]
        )

    def request(self, topic: str, partition: int, payloads: list[bytes]) -> ProduceRequest:
        """What `send_requests` takes; checked, with the codec of this producer."""
        if not 0 < len(topic.encode()) <= 0x7FFF:
            raise ValueError("a topic has 1 to 32767 bytes")
        messages = ByteBufferMessageSet.of(payloads, codec=self.codec, message_bytes_max=self.message_bytes_max)
        return ProduceRequest(topic, partition, messages)

    async def send_requests(self, requests: Sequence[ProduceRequest]) -> None:
        """Send what is encoded already."""
        if requests:
            pieces = encode_produce(requests[0]) if len(requests) == 1 else encode_multi_produce(requests)
            self._writer.write(b"".join(pieces))
            await self._wait()
