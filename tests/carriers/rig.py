"""What several tests of the carriers share: waiting for an event, and parts that record what they see."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import ssl

import aiohttp
from aiohttp.client_reqrep import ConnectionKey

from tests.carriers.origin import Origin
from tests.support.http_relay import LinkTestRelay
from tests.support.loops import until
from tunnel import Attachment
from tunnel.wire import Buffer

__all__ = ["KEY", "CountingRelay", "Recorded", "Talker", "moved_by", "rejected", "until"]


class Recorded:
    """The outcomes of requests, in order: the body of the answer or a piece of it, the text of the failure, or the
    word "ended"."""

    def __init__(self) -> None:
        self.outcomes: asyncio.Queue[bytes | str] = asyncio.Queue()

    def on_answered(self, request_id: int, status: int, body: Buffer, retry_after_us: int, by: str = "") -> None:
        self.outcomes.put_nowait(bytes(body))

    def ready(self) -> None:
        """Do nothing: these tests send what they want at any time."""

    def on_failed(self, request_id: int, text: str, *, final: bool = False) -> None:
        self.outcomes.put_nowait(text)

    def on_received(self, request_id: int, piece: Buffer) -> bool:
        self.outcomes.put_nowait(bytes(piece))
        return True

    def on_ended(self, request_id: int) -> None:
        self.outcomes.put_nowait("ended")

    def on_opened(self, request_id: int) -> None:
        """Do nothing: these tests do not tell open connections from others."""

    def on_sent(self, size_bytes: int) -> None:
        """Do nothing: these tests do not count bytes."""


def moved_by(attachment: Attachment) -> str:
    return attachment.stats().carrier.split()[0]


KEY = ConnectionKey("relay.example", 443, True, True, None, None, None)


def rejected(code: int, text: str = "why") -> aiohttp.ClientConnectorCertificateError:
    error = ssl.SSLCertVerificationError(1, text)
    error.verify_code, error.verify_message = code, text
    return aiohttp.ClientConnectorCertificateError(KEY, error)


class CountingRelay(LinkTestRelay):
    """Notes which roads are asked for, in order; refuses those in `refused`."""

    async def __aenter__(self) -> CountingRelay:
        await super().__aenter__()
        return self

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.refused = refused
        self.asked: list[str] = []

    async def _link(self, request):  # type: ignore[no-untyped-def]
        self.asked.append(request.headers["Upgrade"])
        self.refuse_links = request.headers["Upgrade"] in self.refused
        return await super()._link(request)


class Talker(Origin):
    """Answers 101 and then sends the bytes `after`, which may be frames."""

    def __init__(self, after: bytes) -> None:
        super().__init__(b"")
        self._after = after

    async def respond(self, writer: asyncio.StreamWriter) -> None:
        found = re.search(r"Sec-WebSocket-Key: (\S+)", self.heads[-1])
        assert found is not None
        accept = base64.b64encode(
            hashlib.sha1(found[1].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
        ).decode()
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(f"{head}Sec-WebSocket-Accept: {accept}\r\n\r\n".encode() + self._after)
        await writer.drain()
