"""Reserved ports: no other process can be given the number between its choice and its use, or later."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["hold_port"]


@contextmanager
def hold_port() -> Iterator[int]:
    """Reserve a free port for a server that may start, stop and start again inside the `with` block.

    A socket that is bound but does not listen keeps the kernel from handing out the number as a free port, and refuses
    connections. A server that sets SO_REUSEADDR, as those of asyncio do, can still bind that number explicitly, at any
    address. It is held at all addresses, since what listens at 127.0.0.2 is in the way of a server at 0.0.0.0.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("0.0.0.0", 0))
        yield holder.getsockname()[1]
