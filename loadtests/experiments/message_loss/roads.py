"""The sender's two ways to its broker: TCP connections or a stream through the tunnel, both over the same path."""

import abc
import asyncio
from types import TracebackType
from typing import Self

from tunnel import Attachment, attach

__all__ = ["RawRoad", "Road", "Signs", "TunnelRoad"]

_RETRY_S = 0.05
_LOOPBACK = "127.0.0.1"


class Signs:
    """The signs of a broken connection; the sender leaves phase 1 at the first of them.

    It serves as connection listener and as error listener of an attachment.
    """

    def __init__(self) -> None:
        self.is_connected = False
        self.was_disconnected = False  # set by the connection listener
        self.read_was_closed = False  # set by the error listener
        self.seen = asyncio.Event()
        self.back = asyncio.Event()

    def disconnected(self, reason: str) -> None:
        """Note a lost connection, for the connection listener."""
        self.is_connected = False
        self.was_disconnected = True
        self.seen.set()

    def reconnected(self) -> None:
        """Note that the connection is back, for the connection listener."""
        self.is_connected = True
        self.back.set()

    def read_closed(self, text: str) -> None:
        """Note a failed read, for the error listener."""
        self.read_was_closed = True
        self.seen.set()


class Road(abc.ABC):
    """A way to the broker. Inside its `async with` block, open() returns a stream; `signs` reports breaks."""

    def __init__(self) -> None:
        self.signs = Signs()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.signs.is_connected = False

    @abc.abstractmethod
    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a new stream, as soon as that is possible."""

    async def healed(self) -> None:
        """Wait until the road can be used again after a break. Bytes in the old stream may be lost."""
        if not self.signs.is_connected:
            await self.signs.back.wait()


class RawRoad(Road):
    """A plain TCP connection. A stream that broke is replaced by a new one."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and retry until the path accepts."""
        while True:
            try:
                reader, writer = await asyncio.open_connection(_LOOPBACK, self._port)
            except OSError:
                await asyncio.sleep(_RETRY_S)
                continue
            # Without a buffer in the transport, drain() returns only when the socket has taken everything.
            writer.transport.set_write_buffer_limits(high=0)
            return reader, writer


class TunnelRoad(Road):
    """A stream through a relay, which survives breaks of the path; the attachment's listeners report them."""

    def __init__(self, relay_port: int, port: int, carrier: str) -> None:
        super().__init__()
        self._port = port
        self._attachment: Attachment = attach(f"http://{_LOOPBACK}:{relay_port}", proxy=None, carrier=carrier)

    async def __aenter__(self) -> Self:
        self._attachment.add_connection_listener(self.signs)
        self._attachment.add_error_listener(self.signs)
        await self._attachment.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._attachment.close()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the only stream of the run."""
        return await self._attachment.open_connection(_LOOPBACK, self._port, timeout=30)
