"""Endpoints with many connections, and the batches that they fill."""

from tests.core.solo import TARGET, Solo
from tunnel.core import Connection, EndpointConfig
from tunnel.core.scheduler import Batch
from tunnel.wire import PacketType

__all__ = ["ACK", "DATA", "KIB", "fill", "many"]

DATA, ACK = PacketType.DATA, PacketType.ACK
KIB = 1024


def many(count: int, config: EndpointConfig | None = None) -> tuple[Solo, list[Connection]]:
    """Return an endpoint with `count` open connections, and the connections."""
    solo = Solo(config)
    return solo, [solo.opened(TARGET).connection for _ in range(count)]


def fill(solo: Solo, size_max: int) -> Batch:
    batch = solo.endpoint.next_batch(size_max, solo.now)
    assert batch is not None
    return batch
