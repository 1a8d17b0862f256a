"""Watches the frames of a websocket (RFC 6455, 5.2) before aiohttp parses them, and charges them to their user.

aiohttp puts messages together and keeps them until they are taken. It does not show how much it keeps, for how long a
message has been incomplete, or in how many frames it came.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from tunnel.carriers.halves.websocket_transport import BAD_FRAME, STATUS_CLOSE, TOO_BIG, WRONG_DATA
from tunnel.wire import StatusCode
from tunnel_servlet.access.connections import CountedConnection

__all__ = ["FrameGuard"]

_FRAME_BYTES = 128  # charged for each frame besides its data: aiohttp's own count for a message in its queue
_BINARY, _TEXT, _CLOSE, _PONG = 0x2, 0x1, 0x8, 0xA  # opcodes
_MASK_BYTES = 4


class _Parser(Protocol):
    def feed_data(self, data: bytes) -> tuple[bool, bytes]: ...

    def feed_eof(self) -> None: ...


class FrameGuard:
    """Stands between a connection and aiohttp's parser. It passes nothing on after the first violation of 8.5.

    `fail` is then called with a close code and a reason. A frame must be complete `seconds` after it has begun.
    """

    def __init__(
        self, counted: CountedConnection | None, bytes_max: int, seconds: float, fail: Callable[[int, str], None]
    ) -> None:
        self.parser: _Parser
        self.coming_bytes = 0  # of the frame whose header has come and whose end has not
        self._counted = counted
        self._bytes_max = bytes_max
        self._seconds = seconds
        self._fail = fail
        self._head = bytearray()  # of the next frame, until it is complete
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Check the data, and pass it on if it keeps to the rules."""
        if not self._is_over:
            self._look_at(data)
        if self._is_over:
            return False, b""
        if self._head or self.coming_bytes:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._seconds, self._too_slow)
        else:
            self._stop_timer()
        return self.parser.feed_data(data)

    def feed_eof(self) -> None:
        """Pass the end of the connection on."""
        self.close()
        self.parser.feed_eof()

    def taken(self, size: int) -> None:
        """Give back what was charged for a message of this size."""
        self._hold(-size - _FRAME_BYTES)

    def close(self) -> None:
        """Give back everything that was charged. The guard passes nothing on after this."""
        self._is_over = True
        self._stop_timer()
        self._hold(-self._held_bytes)

    def _look_at(self, data: bytes) -> None:
        start = 0
        while start < len(data) and not self._is_over:
            if self.coming_bytes:
                size = min(self.coming_bytes, len(data) - start)
                self.coming_bytes -= size
                start += size
                if not self.coming_bytes:
                    self._stop_timer()
            else:
                size = self._missing()
                self._head += data[start : start + size]
                start += size
                if not self._missing():
                    self._begin_frame()

    def _missing(self) -> int:
        """Return the number of bytes that are still missing of a frame's header, as far as it is known.

        The mask counts as a part of the data, so that the guard finds a violation before aiohttp does.
        """
        head = self._head
        if len(head) < 2:
            return 2 - len(head)
        return 2 + self._length_bytes() - len(head)

    def _length_bytes(self) -> int:
        """Return how many bytes the length takes after the first two of the header."""
        return {126: 2, 127: 8}.get(self._head[1] & 0x7F, 0)

    def _begin_frame(self) -> None:
        first, second = self._head[:2]
        more = self._length_bytes()
        length = int.from_bytes(self._head[2 : 2 + more], "big") if more else second & 0x7F
        self._head.clear()
        opcode = first & 0xF
        if opcode == _TEXT:
            self._violated(WRONG_DATA, "a text message: each batch is a binary message")
        elif not first & 0x80 or not (opcode == _BINARY or _CLOSE <= opcode <= _PONG):
            self._violated(BAD_FRAME, "a message in several frames: each batch is one frame")
        elif not second & 0x80:
            self._violated(BAD_FRAME, "a frame without a mask")
        elif length > self._bytes_max:
            self._violated(TOO_BIG, f"a message of {length} bytes is above the limit of {self._bytes_max}")
        elif not self._hold(length + _FRAME_BYTES):
            self._violated(STATUS_CLOSE + StatusCode.BUSY, "too many messages of this user are still coming")
        self.coming_bytes = length + _MASK_BYTES

    def _violated(self, code: int, text: str) -> None:
        self.close()
        self._fail(code, text)

    def _hold(self, count: int) -> bool:
        if self._counted is not None:
            if count > 0 and not self._counted.hold(count):
                return False
            if count < 0:
                count = -min(-count, self._held_bytes)
                self._counted.free(-count)
        self._held_bytes += count
        return True

    def _too_slow(self) -> None:
        self._violated(STATUS_CLOSE + StatusCode.BUSY, f"a message did not arrive within {self._seconds} s")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
