"""What the two directions of a transport share, and the calls of its protocol."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from tunnel.core import ConnectionStats, State
from tunnel.driver import Driver
from tunnel.streams.asyncio_compat import FlowControlled
from tunnel.wire import AbortReason, Buffer

__all__ = ["ByteStream", "TransportState"]


class ByteStream(Protocol):
    """The methods of a connection that a transport uses. `Connection` and `EncryptedConnection` have them."""

    id: int

    @property
    def state(self) -> State: ...
    @property
    def unacknowledged_bytes(self) -> int: ...
    def snapshot(self) -> ConnectionStats: ...
    def write(self, data: Buffer, now: int) -> int: ...
    def flush(self, waiting_bytes: int = 0) -> None: ...
    def read(self, size_max: int, now: int) -> Buffer: ...
    def finish(self, now: int) -> None: ...
    def close(self, now: int) -> None: ...
    def abort(self, now: int, reason: AbortReason = ..., text: str = ...) -> None: ...


class TransportState:
    """The connection of a transport, its protocol, and whether it is closing or over. The transport sets all this."""

    def __init__(self, transport: FlowControlled, driver: Driver, connection: ByteStream, target: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport = transport
        self.driver = driver
        self.connection = connection
        self.target = target  # in a form for people
        self.protocol: asyncio.BaseProtocol | None = None
        self.is_closing = False
        self.over: BaseException | str | None = None  # why the transport has ended

    def guard(self, call: Callable[..., object], *arguments: object) -> object:
        """Call the protocol. If it raises, report the error, and abort, as asyncio's transports do."""
        try:
            return call(*arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            context = {
                "message": "a protocol raised",
                "exception": error,
                "transport": self.transport,
                "protocol": self.protocol,
            }
            self.loop.call_exception_handler(context)
            self.transport.abort()
            return None
