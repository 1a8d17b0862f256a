"""One live channel per address: dialled once, shared by everybody, replaced when it is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self, TypeAlias

from tunnel.messages.calls import CALL_TIMEOUT_S, CallChannel, CallHandler, Response
from tunnel.messages.errors import ChannelClosedError

__all__ = ["CONNECT_TIMEOUT_S", "ChannelTable", "ChannelWrapper", "Dial", "split_address"]

CONNECT_TIMEOUT_S = 3.0  # connectTimeoutMillis of the document

Dial: TypeAlias = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a stream to an address: `lambda address: attachment.open_connection(*split_address(address))`."""


def split_address(address: str) -> tuple[str, int | None]:
    """ "host:port" as a pair; a name without a port, which is that of a service, has None."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return address, None
    if not port.isdigit() or not host:
        raise ValueError(f"{address!r} is no address: write host:port, or the name of a service")
    return host.removeprefix("[").removesuffix("]"), int(port)


class ChannelWrapper:
    """A place in the table: a channel, or one that is still being dialled.

    The document wraps the future of its connect for the same reason: whoever asks while it is pending must find it.
    """

    def __init__(self, dialling: asyncio.Task[CallChannel]) -> None:
        self._dialling = dialling

    @property
    def is_usable(self) -> bool:
        """Whether it is open, or may become so."""
        task = self._dialling
        if not task.done():
            return True
        return not task.cancelled() and task.exception() is None and task.result().is_open

    async def channel(self) -> CallChannel:
        """The channel, when it is there; what dialling raised otherwise. Who is cancelled leaves the others waiting."""
        try:
            return await asyncio.shield(self._dialling)
        except asyncio.CancelledError:
            if self._dialling.cancelled():
                raise ChannelClosedError("the channel table was closed") from None
            raise

    async def close(self) -> None:
        """End the dialling or the channel."""
        self._dialling.cancel()
        (outcome,) = await asyncio.gather(self._dialling, return_exceptions=True)
        if isinstance(outcome, CallChannel):
            await outcome.close()


class ChannelTable:
    """Channels by address. Use it as an async context manager, or `close` it.

    `dial` makes the streams; without it addresses are those of TCP. `handlers` answer what the other sides ask.
    """

    def __init__(
        self,
        dial: Dial | None = None,
        handlers: Mapping[int, CallHandler] | None = None,
        *,
        connect_timeout: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._dial = dial or _dial_tcp
        self._handlers = handlers
        self._connect_timeout = connect_timeout
        self._wrappers: dict[str, ChannelWrapper] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def channel(self, address: str) -> CallChannel:
        """The live channel to an address, dialled if there is none. TimeoutError after `connect_timeout` seconds."""
        if self._closed:
            raise ChannelClosedError("the channel table is closed")
        wrapper = self._wrappers.get(address)
        if wrapper is None or not wrapper.is_usable:
            task = asyncio.get_running_loop().create_task(self._open(address))
            # Its error is for those who wait; when all of them were cancelled it is nobody's.
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            wrapper = self._wrappers[address] = ChannelWrapper(task)
        return await wrapper.channel()

    async def call(
        self,
        address: str,
        code: int,
        body: bytes | bytearray | memoryview = b"",
        fields: dict[str, str] | None = None,
        *,
        timeout: float | None = CALL_TIMEOUT_S,  # noqa: ASYNC109
    ) -> Response:
        """Ask an address; the time to connect does not count. See CallChannel.call."""
        channel = await self.channel(address)
        return await channel.call(code, body, fields, timeout=timeout)

    async def close(self) -> None:
        """End every channel."""
        self._closed = True
        wrappers, self._wrappers = self._wrappers, {}
        await asyncio.gather(*(wrapper.close() for wrapper in wrappers.values()))

    async def _open(self, address: str) -> CallChannel:
        try:
            async with asyncio.timeout(self._connect_timeout):
                reader, writer = await self._dial(address)
        except TimeoutError:
            raise TimeoutError(f"{address}: no connection within {self._connect_timeout} s") from None
        channel = CallChannel(reader, writer, self._handlers)
        channel.start()
        return channel


async def _dial_tcp(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = split_address(address)
    if port is None:
        raise ValueError(f"{address!r} has no port: over TCP, write host:port")
    return await asyncio.open_connection(host, port)
