"""A receive window alone, fed by hand. Numbers count from its first packet."""

from typing import Any

from xxhash import xxh3_128

from tunnel.core.budget import WindowBudget
from tunnel.core.config import EndpointConfig
from tunnel.core.receive.window import Arrival, ReceiveWindow
from tunnel.wire import Buffer, End, PacketType

__all__ = ["CLOSE", "DATA", "FINISH", "FIRST", "KIB", "OPTION", "data", "end", "end_of", "make", "read_all", "small"]

DATA, FINISH, CLOSE, OPTION = PacketType.DATA, PacketType.FINISH, PacketType.CLOSE, PacketType.OPTION
FIRST = 2**32 + 100
KIB = 1024
CONFIG = EndpointConfig(window_bytes_start=256 * KIB, window_bytes_min=16 * KIB, window_bytes_max=2**20)


def make(config: EndpointConfig = CONFIG, budget_bytes: int = 2**24) -> ReceiveWindow:
    return ReceiveWindow(config, WindowBudget(budget_bytes), FIRST)


def small(size_bytes: int, **fields: Any) -> ReceiveWindow:
    """Return a window of that size, which never grows."""
    return make(
        EndpointConfig(
            window_bytes_min=size_bytes, window_bytes_start=size_bytes, window_bytes_max=size_bytes, **fields
        )
    )


def data(window: ReceiveWindow, number: int, payload: Buffer) -> Arrival:
    return window.insert(FIRST + number, DATA, payload, None)


def end_of(stream: bytes) -> End:
    return End(len(stream), xxh3_128(stream).digest())


def end(window: ReceiveWindow, number: int, stream: bytes, packet_type: PacketType = FINISH) -> Arrival:
    return window.insert(FIRST + number, packet_type, b"", end_of(stream))


def read_all(window: ReceiveWindow, size: int = 1 << 30) -> bytes:
    parts = []
    while len(part := window.read(size)):
        parts.append(bytes(part))
    return b"".join(parts)
