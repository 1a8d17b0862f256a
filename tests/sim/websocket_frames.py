"""Both halves of a websocket in the simulator. Frames are read by the parsers that read them in the product.

These are aiohttp's parser on both sides, and before it, at the relay, the guard that enforces clause 8.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import WSMessage, WSMsgType
from aiohttp._websocket.helpers import websocket_mask
from aiohttp._websocket.reader import WebSocketDataQueue, WebSocketReader

from tests.fuzz.websocket_frames import BINARY, frame
from tests.sim.event_loop import VirtualLoop
from tunnel.wire import LINK_HEADER_SIZE, PACKET_SIZE_MAX
from tunnel_servlet.config import ServiceLimits
from tunnel_servlet.web.http.websocket_guard import FrameGuard

__all__ = ["FrameReader", "GuardedFrameReader", "framed"]

_QUEUE_BYTES = 1 << 28  # more than ever waits: the queue is emptied after each feed


class _Protocol:
    """Stands for the protocol that aiohttp's queue would pause."""

    _reading_paused = False


def framed(data: bytes, *, masked: bool) -> bytes:
    """A binary message in one frame, as aiohttp writes it."""
    head = frame(BINARY, b"", masked=masked, size=len(data))
    if not masked:
        return head + data
    payload = bytearray(data)
    websocket_mask(head[-4:], payload)
    return head + payload


class FrameReader:
    """The endpoint's parser. `wrong` says why nothing more can be read."""

    def __init__(self, bytes_max: int = PACKET_SIZE_MAX + LINK_HEADER_SIZE) -> None:
        self.wrong = ""
        stand_in: Any = _Protocol()
        self._queue = WebSocketDataQueue(stand_in, _QUEUE_BYTES, loop=None)  # type: ignore[arg-type]
        self._reader = WebSocketReader(self._queue, bytes_max + 1, compress=False, decode_text=False)

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the binary messages that are whole."""
        self._pass_on(data)
        found: list[bytes] = []
        while self._queue._buffer and not self.wrong:
            message = _result(self._queue.read())
            if message.type is WSMsgType.BINARY:
                found.append(message.data)
            elif message.type in (WSMsgType.TEXT, WSMsgType.CLOSE):
                self.wrong = f"a message of type {message.type.name}"
        error = self._queue.exception()
        if error is not None and not self.wrong:
            self.wrong = f"the websocket failed: {error}"
        return found

    def _pass_on(self, data: bytes) -> None:
        self._reader.feed_data(data)


class GuardedFrameReader(FrameReader):
    """The relay's parser. `closed` is called when the guard closes the websocket."""

    def __init__(self, loop: VirtualLoop, closed: Callable[[], None]) -> None:
        limits = ServiceLimits()
        super().__init__(limits.link_batch_bytes_max + LINK_HEADER_SIZE)
        self._loop = loop
        self._closed = closed
        bytes_max = limits.link_batch_bytes_max + LINK_HEADER_SIZE
        self._guard = FrameGuard(None, bytes_max, limits.body_seconds, self._fail)
        self._guard.parser = self._reader

    def close(self) -> None:
        """End the guard's timer."""
        self._guard.close()

    def _pass_on(self, data: bytes) -> None:
        with self._loop.running():
            self._guard.feed_data(data)

    def _fail(self, code: int, text: str) -> None:
        self.wrong = f"{code}: {text}"
        self._closed()


def _result(reading: Any) -> WSMessage:
    """The result of a coroutine that need not wait."""
    try:
        reading.send(None)
    except StopIteration as ended:
        found: WSMessage = ended.value
        return found
    raise AssertionError("the queue was empty")
