"""Many concurrent requests on one connection: an opaque id matches each answer to its request, in any order.

Both sides may call and both may answer. A channel never stops reading: if it gets more requests than it may hold, it
answers SYSTEM_BUSY. Two sides that call each other therefore cannot deadlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from sys import getsizeof
from typing import TypeAlias

import msgspec

from tunnel.messages.calls.frame_writer import Buffer, FrameWriter
from tunnel.messages.calls.frames import (
    CallHeader,
    FrameDecoder,
    FrameFlag,
    ResponseCode,
    encode_frame,
    encode_start,
)
from tunnel.messages.errors import ChannelClosedError, MalformedFrameError, RemoteCallError
from tunnel.messages.life import Startable
from tunnel.messages.payers import FREE, Payer
from tunnel.messages.resets import reset_stream
from tunnel.messages.sets.file_sets import FileMessageSet

__all__ = ["CALL_TIMEOUT_S", "CallChannel", "CallHandler", "Request", "Response", "serve_calls"]

CALL_TIMEOUT_S = 30.0
_READ_BYTES = 256 * 1024
_HANDLED_MAX = 1024  # requests at once
_HANDLED_BYTES_MAX = 64 * 1024 * 1024  # bytes of these requests
_HANDLED_TURN = 16  # frames handled at once, while other connections wait
_REQUEST_BYTES = 2048  # about what a request takes besides its body and fields: a task, its frames, a timer
_REMARK_MAX = 1000


class Request(msgspec.Struct, gc=False):
    """A request, as a handler receives it."""

    code: int
    body: bytes
    fields: dict[str, str] | None = None
    is_one_way: bool = False


class Response(msgspec.Struct, gc=False):
    """A response, as a handler returns it and a caller receives it.

    A handler may return a part of a file as the body, which is sent without a copy. A caller always receives bytes.
    """

    body: Buffer | FileMessageSet = b""
    fields: dict[str, str] | None = None

    @property
    def data(self) -> bytes:
        """The body in memory."""
        return self.body.load() if isinstance(self.body, FileMessageSet) else bytes(self.body)


CallHandler: TypeAlias = Callable[[Request], Awaitable[Response | None] | Response | None]
"""A function or coroutine function that answers requests. It raises RemoteCallError to answer with an error code."""


class CallChannel(Startable):
    """Requests and responses over one stream. Use it as an async context manager, or call `start` and `close`.

    `handlers` maps request codes to the functions that answer the peer's requests.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: Mapping[int, CallHandler] | None = None,
        *,
        handled_max: int = _HANDLED_MAX,
        handled_bytes_max: int = _HANDLED_BYTES_MAX,
        unread_bytes_max: int | None = None,
        payer: Payer = FREE,
    ) -> None:
        """`unread_bytes_max`: if the peer sends a request while more bytes of answers wait, the connection ends.

        `payer` pays for requests and for the tasks that answer them.
        """
        self.reads = 0  # grows with whatever the peer sends
        self.late_answers = 0  # answers to calls that have already ended
        self.error: Exception | None = None
        self._reader = reader
        self._writer = writer
        self._handlers = handlers or {}
        self._handled_max = handled_max
        self._handled_bytes_max = handled_bytes_max
        self._handled_bytes = 0
        self._payer = payer
        self._unread_bytes_max = 2 * handled_bytes_max if unread_bytes_max is None else unread_bytes_max
        self._loop = asyncio.get_running_loop()
        self._opaque = 0
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._handling: dict[int, asyncio.Task[None]] = {}
        self._one_way: set[asyncio.Task[None]] = set()
        self._frames = FrameWriter(writer, self._end)
        self._decoder = FrameDecoder()
        self._task: asyncio.Task[None] | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()

    # life

    def start(self) -> None:
        """Start the task that reads."""
        self._task = self._loop.create_task(self._payer.charge_for(self._receive()))

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as this side knows."""
        return not self._closed.done()

    async def wait_closed(self) -> None:
        """Wait until the connection has ended. `error` then says why; None means a clean end.

        Handlers of requests that need no answer may still run: `wait_handled` waits for them, and `close` cancels them.
        """
        await asyncio.shield(self._closed)

    @property
    def held_bytes(self) -> int:
        """The bytes that have arrived of an incomplete frame."""
        return self._decoder.held_bytes

    async def room(self, size_max: int) -> None:
        """Wait until at most about `size_max` bytes in memory wait for the peer, or the connection has ended."""
        await self._frames.room(size_max)

    async def wait_handled(self) -> None:
        """Wait until the handlers of all requests that need no answer have returned."""
        while self._one_way:
            await asyncio.wait(self._one_way)

    async def close(self) -> None:
        """End the connection: calls fail with ChannelClosedError, handlers are cancelled, queued answers are sent.

        Of the queued answers, the first one with a file as its body and all later ones are dropped.
        """
        self._end(None)
        tasks = [*self._handling.values(), *self._one_way, *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._frames.wait_closed()

    def _end(self, error: Exception | None) -> None:
        if self._closed.done():
            return
        self._frames.close()
        self.error = error
        self._closed.set_result(None)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(
                    ChannelClosedError(
                        f"the connection has ended{f': {error}' if error else ''}; the request may have been handled"
                    )
                )
        for task in self._handling.values():
            task.cancel()  # their answers can no longer be sent
        if isinstance(error, MalformedFrameError):
            reset_stream(self._writer)  # a peer of another protocol, such as a producer, must not see a good end
        else:
            self._writer.close()

    # calling

    async def call(
        self,
        code: int,
        body: Buffer = b"",
        fields: dict[str, str] | None = None,
        *,
        timeout: float | None = CALL_TIMEOUT_S,  # noqa: ASYNC109
    ) -> Response:
        """Send a request and return its response.

        Raises RemoteCallError if the peer's handler failed, and TimeoutError after `timeout` seconds. A timeout, or
        cancelling the call, also cancels the peer's handler.
        """
        self._check()
        self._decoder.expects_answers = True
        self._opaque += 1
        opaque = self._opaque
        future: asyncio.Future[Response] = self._loop.create_future()
        self._frames.put(encode_frame(CallHeader(code, opaque, 0, "", fields), body))
        self._calls[opaque] = future
        timer = None if timeout is None else self._loop.call_later(timeout, _expire, future, code, timeout)
        try:
            await self._frames.drain()
            return await future
        except (asyncio.CancelledError, TimeoutError):
            self._frames.put(encode_frame(CallHeader(code, opaque, FrameFlag.CANCEL | FrameFlag.ONE_WAY)))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            del self._calls[opaque]
            if future.done() and not future.cancelled():
                future.exception()  # mark it as retrieved, even if another error was raised

    async def send(self, code: int, body: Buffer = b"", fields: dict[str, str] | None = None) -> None:
        """Send a request that gets no response. Returns when the stream has room for more."""
        self._check()
        self._opaque += 1
        self._frames.put(encode_frame(CallHeader(code, self._opaque, FrameFlag.ONE_WAY, "", fields), body))
        await self._frames.drain()

    def _check(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "this channel belongs to the event loop in which it was made: call it there, or use "
                "tunnel_client.messages.BlockingChannel, which any thread may call"
            )
        if self._closed.done():
            raise ChannelClosedError("the connection has ended: open a new channel")

    # receiving

    async def _receive(self) -> None:
        decoder = self._decoder
        try:
            while data := await self._reader.read(_READ_BYTES):
                self.reads += 1
                for number, (header, body) in enumerate(decoder.feed(data), 1):
                    if self._closed.done():
                        return
                    self._handle(header, body)
                    if number % _HANDLED_TURN == 0:
                        await asyncio.sleep(0)
                        await self._payer.turn()
            whole = decoder.is_between_frames
            self._end(None if whole else ChannelClosedError("the peer closed the connection within a frame"))
        except (OSError, MalformedFrameError) as error:
            self._end(error)

    def _handle(self, header: CallHeader, body: bytes) -> None:
        if header.flag & FrameFlag.RESPONSE:
            self._answered(header, body)
        elif header.flag & FrameFlag.CANCEL:
            task = self._handling.get(header.opaque)
            if task is not None:
                task.cancel()
        else:
            self._asked(header, body)

    def _answered(self, header: CallHeader, body: bytes) -> None:
        future = self._calls.get(header.opaque)
        if future is None or future.done():
            self.late_answers += 1
        elif header.code == ResponseCode.SUCCESS:
            future.set_result(Response(body, header.fields))
        else:
            future.set_exception(RemoteCallError(header.code, header.remark, header.fields))

    def _asked(self, header: CallHeader, body: bytes) -> None:
        one_way = bool(header.flag & FrameFlag.ONE_WAY)
        handler = self._handlers.get(header.code)
        if handler is None:
            text = f"no handler for requests of code {header.code}"
            self._fail(header, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
            return
        unread = self._frames.waiting_bytes
        if unread > self._unread_bytes_max:
            self._end(MalformedFrameError(f"the peer sends requests and reads no answers: {unread} bytes wait for it"))
            return
        busy = len(self._handling) + len(self._one_way) >= self._handled_max or header.opaque in self._handling
        size = len(body) + _REQUEST_BYTES + _fields_bytes(header.fields)
        busy = busy or max(unread, self._handled_bytes + size) > self._handled_bytes_max
        if busy or not self._payer.hold(size):
            self._fail(header, ResponseCode.SYSTEM_BUSY, "too many requests at once: try again later")
            return
        request = Request(header.code, body, header.fields, one_way)
        try:
            outcome = handler(request)
        except Exception as error:
            self._payer.free(size)
            self._failed(header, error)
            return
        if outcome is None or isinstance(outcome, Response):
            self._payer.free(size)
            self._succeed(header, outcome)
            return
        self._handled_bytes += size
        task = self._loop.create_task(self._payer.charge_for(self._run(header, outcome)))
        if one_way:
            self._one_way.add(task)
        else:
            self._handling[header.opaque] = task
        task.add_done_callback(lambda task: self._handled(header, size, task))
        # A task that is cancelled before its first step never awaits the coroutine or future that the handler has
        # returned. These callbacks end it; they have no effect if it has ended already.
        if asyncio.iscoroutine(outcome):
            task.add_done_callback(lambda _: outcome.close())
        elif asyncio.isfuture(outcome):
            task.add_done_callback(lambda _: outcome.cancel())

    def _handled(self, header: CallHeader, size: int, task: asyncio.Task[None]) -> None:
        self._handled_bytes -= size
        self._payer.free(size)
        if header.flag & FrameFlag.ONE_WAY:
            self._one_way.discard(task)
        else:
            self._handling.pop(header.opaque, None)

    async def _run(self, header: CallHeader, handling: Awaitable[Response | None]) -> None:
        try:
            response = await handling
            await self._frames.drain()
        except OSError as error:
            if self._closed.done() or isinstance(error, ChannelClosedError):
                return
            self._failed(header, error)
        except Exception as error:
            self._failed(header, error)
        else:
            self._succeed(header, response)

    # answering

    def _succeed(self, header: CallHeader, response: Response | None) -> None:
        if header.flag & FrameFlag.ONE_WAY:
            return
        answer = CallHeader(ResponseCode.SUCCESS, header.opaque, FrameFlag.RESPONSE)
        body: Buffer | FileMessageSet = b""
        if response is not None:
            answer.fields, body = response.fields, response.body
        try:
            if isinstance(body, FileMessageSet):
                self._frames.put_file([encode_start(answer, body.size_bytes)], body)
            else:
                self._frames.put(encode_frame(answer, body))
        except ValueError as error:
            self._failed(header, error)

    def _failed(self, header: CallHeader, error: Exception) -> None:
        if isinstance(error, RemoteCallError):
            self._fail(header, error.code, str(error), error.fields)
        else:
            self._fail(header, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _fail(self, header: CallHeader, code: int, text: str, fields: dict[str, str] | None = None) -> None:
        if not header.flag & FrameFlag.ONE_WAY:
            answer = CallHeader(code, header.opaque, FrameFlag.RESPONSE, text[:_REMARK_MAX], fields or None)
            self._frames.put(encode_frame(answer))


def _fields_bytes(fields: dict[str, str] | None) -> int:
    """Return the memory that fields take, which may be many times the size of their JSON."""
    if not fields:
        return 0
    return getsizeof(fields) + sum(map(getsizeof, fields)) + sum(map(getsizeof, fields.values()))


def _expire(future: asyncio.Future[Response], code: int, seconds: float) -> None:
    if not future.done():
        future.set_exception(TimeoutError(f"no answer to the request of code {code} within {seconds} s"))


def serve_calls(
    handlers: Mapping[int, CallHandler],
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return a callback for `start_server` of a tunnel or of asyncio, which answers each connection until it ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with CallChannel(reader, writer, handlers) as channel:
            await channel.wait_closed()
            await channel.wait_handled()

    return serve
