"""Settings of TCP sockets for their end: whether the close delivers unsent data, or sends a reset."""

import socket
import struct

__all__ = ["deliver_when_closed", "reset_when_closed"]

# Values of SO_LINGER: whether the close waits, and for how many seconds.
_RESET = struct.pack("ii", 1, 0)
_DELIVER = struct.pack("ii", 0, 0)


def reset_when_closed(sock: socket.socket) -> None:
    """Let the close of this socket send a reset. Unsent data is lost then. OSError if the socket is closed already."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def deliver_when_closed(sock: socket.socket) -> None:
    """Let the kernel deliver unsent data after the close, and then the end of the stream, as it does by default."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DELIVER)
