"""A table with one live channel per address: dialled once, shared by all callers, replaced when it is dead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self, TypeAlias

from tunnel.messages.calls.calls import CALL_TIMEOUT_S, CallChannel, CallHandler, Response
from tunnel.messages.errors import ChannelClosedError

__all__ = ["CONNECT_TIMEOUT_S", "SILENT_S", "ChannelTable", "ChannelWrapper", "Dial", "split_address"]

SILENT_S = 5.0  # a call that times out sooner says little about the connection
CONNECT_TIMEOUT_S = 3.0  # connectTimeoutMillis in remoting-and-backlog.md (docs/REFERENCES.md)

Dial: TypeAlias = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a stream to an address: `lambda address: attachment.open_connection(*split_address(address))`."""


def split_address(address: str) -> tuple[str, int | None]:
    """Split "host:port" into a pair. The name of a service has no port: its pair has None."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return address, None
    if not port.isdigit() or not host:
        raise ValueError(f"{address!r} is not an address: write host:port, or the name of a service")
    return host.removeprefix("[").removesuffix("]"), int(port)


class ChannelWrapper:
    """An entry of the table: a channel that is open, or one that is still being dialled.

    A caller that asks during the dialling must find the entry, so as not to dial again. (The code in
    remoting-and-backlog.md wraps its connect future for the same reason.)
    """

    def __init__(self, dialling: asyncio.Task[CallChannel]) -> None:
        self._dialling = dialling

    @property
    def is_usable(self) -> bool:
        """Whether the channel is open, or is being dialled."""
        task = self._dialling
        if not task.done():
            return True
        return not task.cancelled() and task.exception() is None and task.result().is_open

    async def channel(self) -> CallChannel:
        """Wait for the channel and return it; raise the error if dialling failed.

        If one caller is cancelled, dialling goes on for the other callers.
        """
        try:
            return await asyncio.shield(self._dialling)
        except asyncio.CancelledError:
            if self._dialling.cancelled():
                raise ChannelClosedError("the channel table was closed") from None
            raise

    async def close(self) -> None:
        """Cancel the dialling, or close the channel."""
        self._dialling.cancel()
        (outcome,) = await asyncio.gather(self._dialling, return_exceptions=True)
        if isinstance(outcome, CallChannel):
            await outcome.close()


class ChannelTable:
    """Channels by address. Use it as an async context manager, or call `close`.

    `dial` opens the streams; without it, addresses are dialled over TCP. `handlers` answer the requests of the peers.
    """

    def __init__(
        self,
        dial: Dial | None = None,
        handlers: Mapping[int, CallHandler] | None = None,
        *,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        silent: float = SILENT_S,
    ) -> None:
        self._silent = silent
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
        """Return the live channel to an address; dial it if there is none. TimeoutError after `connect_timeout` s."""
        if self._closed:
            raise ChannelClosedError("the channel table is closed: create a new one")
        wrapper = self._wrappers.get(address)
        if wrapper is None or not wrapper.is_usable:
            task = asyncio.get_running_loop().create_task(self._open(address))
            # The waiting callers get the task's error. Mark it as retrieved, in case all of them were cancelled.
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
        """Send a request to an address and return its response, as CallChannel.call does.

        The time to connect does not count towards `timeout`. If a `timeout` of at least the table's `silent` seconds
        passes in which the peer has sent nothing at all, the channel is closed, so that the next call dials again: a
        tunnel keeps a connection open until its user timeout, even if the other end has gone.
        """
        channel = await self.channel(address)
        reads, start = channel.reads, time.monotonic()
        try:
            return await channel.call(code, body, fields, timeout=timeout)
        except TimeoutError:
            if channel.reads == reads and time.monotonic() - start >= self._silent:
                await channel.close()
            raise

    async def close(self) -> None:
        """Close every channel."""
        self._closed = True
        wrappers, self._wrappers = self._wrappers, {}
        await asyncio.gather(*(wrapper.close() for wrapper in wrappers.values()))

    async def _open(self, address: str) -> CallChannel:
        try:
            async with asyncio.timeout(self._connect_timeout):
                reader, writer = await self._dial(address)
        except TimeoutError:
            raise TimeoutError(
                f"{address}: no connection within {self._connect_timeout} s: check the address, and that it listens"
            ) from None
        channel = CallChannel(reader, writer, self._handlers)
        channel.start()
        return channel


async def _dial_tcp(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = split_address(address)
    if port is None:
        raise ValueError(f"{address!r} has no port: over TCP, write host:port")
    return await asyncio.open_connection(host, port)
