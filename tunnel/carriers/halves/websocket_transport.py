"""Lets one half of a link use a websocket in place of a TCP connection: each write is one binary message.

Clause 8.5 of docs/PROTOCOL.md.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, TypeAlias

import aiohttp
from aiohttp import web

from tunnel.carriers.halves.link_protocol import LinkProtocol
from tunnel.wire import Buffer

__all__ = [
    "BAD_FRAME",
    "CLOSE_S",
    "GOING_AWAY",
    "STATUS_CLOSE",
    "TOO_BIG",
    "WRONG_DATA",
    "WebSocket",
    "WebSocketTransport",
]

WebSocket: TypeAlias = "web.WebSocketResponse[bool] | aiohttp.ClientWebSocketResponse[bool]"

# Close codes of RFC 6455, 7.4.1; those from 4000 on are private.
GOING_AWAY = 1001
BAD_FRAME = 1002
WRONG_DATA = 1003
TOO_BIG = 1009
STATUS_CLOSE = 4000  # the close code for a STATUS is this number plus the code of the STATUS

CLOSE_S = 1.0  # time for the other side to answer the end of a websocket
_REASON_BYTES = 123  # a control frame has 125 bytes, of which two are the close code
_HIGH_BYTES = 64 * 1024
_Types = aiohttp.WSMsgType


class WebSocketTransport(asyncio.Transport):
    """The transport of a link's protocol on a websocket. The protocol must be a `LinkProtocol`.

    `taken` is called with the size of each binary message, PING and PONG that was received. `ended` is done when the
    websocket is closed.
    """

    def __init__(self, websocket: WebSocket, taken: Callable[[int], None] = lambda size: None) -> None:
        super().__init__()
        self._websocket = websocket
        self._taken = taken
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._protocol: LinkProtocol | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._is_sending = False
        self._closing: asyncio.Task[None] | None = None
        self._waiting: deque[Buffer] = deque()
        self._waiting_bytes = 0  # written and not yet sent, or being sent
        self._is_paused = False
        self._high_bytes = _HIGH_BYTES
        self._readable = asyncio.Event()
        self._readable.set()

    # asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._websocket.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass messages to this protocol from now on."""
        assert isinstance(protocol, LinkProtocol)
        self._protocol = protocol
        if self._receiving is None:
            self._receiving = self._loop.create_task(self._receive_all())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _HIGH_BYTES if high is None else high

    def is_closing(self) -> bool:
        return self._closing is not None

    def pause_reading(self) -> None:
        self._readable.clear()

    def resume_reading(self) -> None:
        self._readable.set()

    def write(self, data: Buffer) -> None:
        """Send one message."""
        if self._closing is not None or self.ended.done():
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if not self._is_sending:
            self._is_sending = True
            self._sending = _begun(self._send_all(), self._loop)
        if self._waiting_bytes > self._high_bytes and not self._is_paused and self._protocol is not None:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send one message, which consists of these parts."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Send what was written, then close the websocket."""
        self.close_with(GOING_AWAY, "")

    def abort(self) -> None:
        """Close the websocket, and drop everything that was not sent yet."""
        self.close_with(GOING_AWAY, "", at_once=True)

    def close_with(self, code: int, text: str, *, at_once: bool = False) -> None:
        """Close the websocket with this close code and reason. The protocol gets nothing more.

        `at_once`: drop everything that was not sent yet.
        """
        if self._closing is None and not self.ended.done():
            if at_once:
                self._waiting.clear()
            self._closing = self._loop.create_task(self._close(code, text))
            self._loop.call_soon(self._lose, None)

    # sending

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                data = self._waiting.popleft()
                await self._websocket.send_bytes(data)  # type: ignore[arg-type]  # it takes any buffer
                self._waiting_bytes -= len(data)
                if self._is_paused and self._waiting_bytes <= self._high_bytes and self._protocol is not None:
                    self._is_paused = False
                    self._protocol.resume_writing()
        except (ConnectionError, RuntimeError, aiohttp.ClientError) as error:
            self._waiting.clear()
            self._loop.call_soon(self._lose, error)
        finally:
            self._is_sending = False
            self._sending = None

    # receiving

    async def _receive_all(self) -> None:
        error: Exception | None = None
        try:
            while self._closing is None and error is None:
                await self._readable.wait()
                error = await self._receive()
        except (ConnectionError, RuntimeError, aiohttp.ClientError) as failure:
            error = failure
        finally:
            self._lose(error)

    async def _receive(self) -> Exception | None:
        """Handle the next message; return an error if the websocket has ended."""
        message = await self._websocket.receive()
        data: Any = message.data
        match message.type:
            case _Types.BINARY:
                self._taken(len(data))
                if self._closing is None and self._protocol is not None:
                    self._protocol.message_received(data)
            case _Types.PING:
                self._taken(len(data))
                await self._websocket.pong(data)
            case _Types.PONG:
                self._taken(len(data))
            case _Types.TEXT:
                self.close_with(WRONG_DATA, "a text message: each batch is a binary message", at_once=True)
            case _Types.CLOSE:
                return ConnectionResetError(_closed_text(data, message.extra))
            case _Types.ERROR:
                return ConnectionResetError(f"the websocket failed: {data}")
            case _:
                return ConnectionResetError("the connection was closed")
        return None

    # the end

    def _lose(self, error: Exception | None) -> None:
        """Tell the protocol, once, that the websocket has ended."""
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)
            if self._closing is None and not self.ended.done():
                self._closing = self._loop.create_task(self._close(GOING_AWAY, ""))

    async def _close(self, code: int, text: str) -> None:
        reason = text.encode()[:_REASON_BYTES].decode("utf-8", "ignore").encode()
        try:
            async with asyncio.timeout(CLOSE_S):
                if self._sending is not None and self._waiting:
                    await asyncio.wait([self._sending])
                if self._receiving is not None:
                    # While `receive` runs, aiohttp's server does not wait for the answer to its close frame; bytes that
                    # come later then reset the connection, and the frame is lost.
                    self._receiving.cancel()
                    await asyncio.wait([self._receiving])
                await self._websocket.close(code=code, message=reason)
        except (TimeoutError, ConnectionError, RuntimeError, aiohttp.ClientError):
            pass  # the other side is not there any more
        finally:
            self._end()

    def _end(self) -> None:
        for task in (self._receiving, self._sending):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if not self.ended.done():
            self.ended.set_result(None)


def _closed_text(code: Any, reason: Any) -> str:
    return f"the websocket was closed (code {code}{f': {reason}' if reason else ''})"


def _begun(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> "asyncio.Task[None] | None":
    """Run the coroutine until it must wait, and the rest of it in a task; None if there is no rest.

    A task alone would start it only in the next turn of the event loop, and so delay every message.
    """
    try:
        future = work.send(None)
    except StopIteration:
        return None
    return loop.create_task(_wait(_Rest(work, future)))


class _Rest:
    """The rest of a coroutine that has begun outside a task and waits for `future`."""

    def __init__(self, work: Coroutine[Any, Any, None], future: Any) -> None:
        self._work = work
        self._future = future

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._future
        except BaseException as error:
            with contextlib.suppress(StopIteration):
                self._work.throw(error)
            return
        yield from self._work.__await__()


async def _wait(rest: _Rest) -> None:
    await rest
