"""How the sender reaches its broker: a TCP connection, or a stream through the tunnel. Both lead over the same path."""

import abc
import asyncio
from types import TracebackType
from typing import Self

from tunnel import Attachment, attach

__all__ = ["RawRoad", "Road", "Signs", "TunnelRoad"]

_RETRY_S = 0.05
_LOOPBACK = "127.0.0.1"


class Signs:
    """The three signs of a broken connection; the sender leaves phase 1 at the first of them."""

    def __init__(self) -> None:
        self.is_connected = False
        self.was_disconnected = False  # of the connection listener
        self.read_was_closed = False  # of the error listener
        self.seen = asyncio.Event()
        self.back = asyncio.Event()

    def disconnected(self, reason: str) -> None:
        """For the connection listener."""
        self.is_connected = False
        self.was_disconnected = True
        self.seen.set()

    def reconnected(self) -> None:
        """For the connection listener."""
        self.is_connected = True
        self.back.set()

    def read_closed(self, text: str) -> None:
        """For the error listener."""
        self.read_was_closed = True
        self.seen.set()


class Road(abc.ABC):
    """`async with` it, and open a stream to the broker; `signs` says how it fares."""

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
        """A new stream, when one can be had."""

    async def healed(self) -> None:
        """Return when the road can be used again, after a sign; what was in the old stream may be lost."""
        if not self.signs.is_connected:
            await self.signs.back.wait()


class RawRoad(Road):
    """Nothing between the sender and TCP. A stream that broke is replaced by a new one."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Try until somebody listens."""
        while True:
            try:
                reader, writer = await asyncio.open_connection(_LOOPBACK, self._port)
            except OSError:
                await asyncio.sleep(_RETRY_S)
                continue
            # With no buffer of its own, drain() returns when the socket has taken everything.
            writer.transport.set_write_buffer_limits(high=0)
            return reader, writer


class TunnelRoad(Road):
    """A stream through a relay. What breaks beneath it is mended; the signs come from the attachment's listeners."""

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
        """The one stream of the run."""
        return await self._attachment.open_connection(_LOOPBACK, self._port, timeout=30)
