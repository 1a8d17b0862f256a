"""An endpoint that follows only those rules of the protocol without which the relay would not let it in."""

import asyncio
import contextlib
import socket
from random import Random
from typing import Self
from urllib.parse import urlsplit

from tunnel.carriers.halves.link_protocol import LINK_LANE, LINK_PROTOCOL
from tunnel.wire import (
    ENVELOPE_BYTES,
    Attach,
    Attached,
    EnvelopeError,
    Exchange,
    LinkHeader,
    Message,
    attachment_id,
    decode_envelope,
    encode_envelope,
    encode_link_header,
)

__all__ = ["RawEndpoint", "RawLink", "read_answer", "shrink_window"]

_BODY_BYTES_MAX = 1 << 20


class RawEndpoint:
    """An attachment of one user. `connect`, `attach` and `link` open a connection each; the others return bytes."""

    def __init__(self, url: str, token: str, seed: int) -> None:
        where = urlsplit(url)
        self.host, self.port = where.hostname or "", where.port or 80
        self.secret = Random(seed).randbytes(32)
        self.identity = attachment_id(self.secret)
        self.epoch = 0
        self._token = token

    async def connect(self, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the relay from this address."""
        return await asyncio.open_connection(self.host, self.port, local_addr=(source, 0))

    async def attach(self) -> Self:
        """Attach, and remember the relay's epoch."""
        reader, writer = await self.connect()
        writer.write(self.attaching())
        answer = await read_answer(reader)
        writer.close()
        if not isinstance(answer, Attached):
            raise ConnectionError(f"the relay did not attach the attacker: {answer}")
        self.epoch = answer.epoch
        return self

    def attaching(self) -> bytes:
        """Return a request that attaches."""
        message = Attach(secret=self.secret, generation=1, pull_interval_ms=0, body_bytes_max=_BODY_BYTES_MAX)
        body = _encoded(message)
        return self.head(len(body)) + body

    def head(self, length: int) -> bytes:
        """Return the head of a request whose body has this length."""
        return (
            f"POST /exchange HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    def exchange(self, number: int, payload: bytes = b"", *, lane: int = 0) -> bytes:
        """Return a request that carries these packets."""
        body = _encoded(self._message(lane, number, payload))
        return self.head(len(body)) + body

    async def link(self) -> "RawLink":
        """Open a link."""
        reader, writer = await self.connect()
        writer.write(
            f"GET /link HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self._token}\r\n"
            f"Connection: Upgrade\r\nUpgrade: {LINK_PROTOCOL}\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_encoded(self._message(LINK_LANE, 0, b"")))
        head = await reader.readexactly(ENVELOPE_BYTES)
        await reader.readexactly(int.from_bytes(head[8:12], "big"))
        return RawLink(reader, writer)

    def _message(self, lane: int, number: int, payload: bytes) -> Exchange:
        return Exchange(
            attachment_id=self.identity,
            epoch=self.epoch,
            generation=1,
            lane=lane,
            number=number,
            serial_received=0,
            hold_ms=0,
            answer_bytes_max=_BODY_BYTES_MAX,
            payload=[payload],
        )


class RawLink:
    """A link on plain streams. All data that arrives is thrown away."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._number = 0
        self._drained = asyncio.get_running_loop().create_task(self._read())

    async def send(self, packets: bytes) -> None:
        """Send a batch, and wait until the connection takes more."""
        self._number += 1
        self.writer.write(encode_link_header(LinkHeader(self._number, 0, len(packets))) + packets)
        await self.writer.drain()

    def close(self) -> None:
        """End the link at once."""
        self._drained.cancel()
        self.writer.transport.abort()

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass


def shrink_window(writer: asyncio.StreamWriter) -> None:
    """Let the kernel take few bytes for this connection, so that the relay's answers wait at the relay."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


def _encoded(message: Message) -> bytes:
    return b"".join(encode_envelope(message))


async def read_answer(reader: asyncio.StreamReader) -> Message | EnvelopeError:
    """Return the message in the next answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return decode_envelope(await reader.readexactly(int(length.split(b":")[1])))
