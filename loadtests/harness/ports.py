"""Ports that stay ours: nobody else gets a number between the moment that it is chosen and its use, or after it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["hold_port"]


@contextmanager
def hold_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A port at which nobody listens, until a process that is told its number does: it may come and go.

    A socket that is bound and does not listen keeps the kernel from giving the number to anybody who asks for a free
    one, and refuses who connects. A server that reuses addresses, as those of asyncio do, may still bind the number by
    name.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield holder.getsockname()[1]
