"""The end of a stream that must not look like a good one: the peer gets an error, not the end of the stream."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from tunnel.system.linger import reset_when_closed

__all__ = ["reset_stream"]


def reset_stream(writer: asyncio.StreamWriter) -> None:
    """End a stream at once, so that the peer's next read or write raises an error. Data that waits is lost."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):  # it is closed already
            reset_when_closed(sock)
    writer.transport.abort()
