"""A connection without a network: a transport in memory, and one event loop for all runs of a process."""

import asyncio
import gc
import socket
from collections.abc import Callable, Coroutine
from typing import Any, cast

__all__ = ["MemoryTransport", "Socketless", "portions", "run_in_loop", "settle"]

_PORTIONS_MAX = 150
_TURNS = 12  # of the loop; after them, only handlers that wait for a timer or for input have anything left to do
_loop: asyncio.AbstractEventLoop | None = None


class Socketless:
    """Stands for a socket, which takes every option."""

    family = socket.AF_INET

    def setsockopt(self, *_: object) -> None:
        """Do nothing."""


class MemoryTransport(asyncio.Transport):
    """The tested end of a connection. `sent`: the bytes that its protocol has written."""

    def __init__(self, protocol: asyncio.BaseProtocol, peer: str = "192.0.2.1") -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_lost = False
        self.is_read = True
        self._peer = peer
        self._protocol = protocol
        self._waiting = bytearray()  # bytes that arrived while reading was paused
        self._is_eof = False
        self._closing = False

    def arrive(self, data: bytes) -> None:
        """Give bytes to the protocol, in the way that its kind wants, or keep them while reading is paused."""
        self._waiting += data
        while self._waiting and self.is_read and not self._closing:
            protocol = self._protocol
            if isinstance(protocol, asyncio.BufferedProtocol):
                space = memoryview(protocol.get_buffer(-1))  # as asyncio's own transports do
                count = min(len(space), len(self._waiting))
                space[:count] = self._waiting[:count]
                del self._waiting[:count]
                protocol.buffer_updated(count)
            else:
                taken = bytes(self._waiting)
                self._waiting.clear()
                cast(asyncio.Protocol, protocol).data_received(taken)

    def end(self) -> None:
        """Let the other end close the connection."""
        if not self._closing:
            self._is_eof = True
            if not cast(asyncio.Protocol, self._protocol).eof_received():
                self.close()

    def lose(self) -> None:
        """Let the connection break."""
        self.abort()

    # asyncio.Transport

    def write(self, data: Any) -> None:
        if not self._closing:
            self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def write_eof(self) -> None:
        """Do nothing: the other end of a test knows what was written."""

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._lost)

    def abort(self) -> None:
        self.close()

    def _lost(self) -> None:
        self.is_lost = True
        self._protocol.connection_lost(None)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self.is_read

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True
        asyncio.get_running_loop().call_soon(self.arrive, b"")

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = {"peername": (self._peer, 4711), "sockname": ("127.0.0.1", 80), "socket": Socketless()}
        return found.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: no byte waits here."""


def portions(data: bytes, choice: int) -> list[bytes]:
    """Cut the data into portions, as one byte of the input chooses: whole, or all of one size."""
    size = max((len(data) or 1, 1, 2, 3, 7, 24, 64, 200)[choice & 7], len(data) // _PORTIONS_MAX)
    return [data[at : at + size] for at in range(0, len(data), size)]


async def settle() -> None:
    """Let everything run that waits for no timer and no input."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def run_in_loop(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine. Raise AssertionError if the loop reports a problem, or if a task is left over."""
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
    problems: list[str] = []
    _loop.set_exception_handler(lambda _, context: problems.append(f"{context!r}"))

    async def whole() -> None:
        await make()
        await settle()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks are left over: {left}"

    try:
        _loop.run_until_complete(whole())
    except BaseException:
        _loop.close()
        _loop = None
        raise
    if problems:
        gc.collect()
    assert not problems, problems
