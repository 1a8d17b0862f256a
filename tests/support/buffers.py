"""What the kernel says about the buffers of a socket."""

import socket
import sys

__all__ = ["is_kept"]


def is_kept(sock: socket.socket) -> bool:
    """Whether the receive buffer keeps its size, by Linux's SO_BUF_LOCK (asm-generic/socket.h); elsewhere it never
    does."""
    return sys.platform == "linux" and bool(sock.getsockopt(socket.SOL_SOCKET, 72) & 2)
