"""The receive buffer that the kernel has for a TCP socket: whether it may grow while data comes.

Linux lets it grow to `net.ipv4.tcp_rmem`, 6 MiB and more, for a reader who was quick once. All TCP sockets of a machine
share `net.ipv4.tcp_mem`, a tenth of its memory: when that is used up, the kernel drops what any of them receives.
"""

import socket
import sys

__all__ = ["keep_receive_buffer", "let_receive_buffer_grow"]

_SO_BUF_LOCK = 72  # asm-generic/socket.h, since Linux 5.14
_SOCK_RCVBUF_LOCK = 2  # linux/socket.h


def keep_receive_buffer(sock: socket.socket) -> None:
    """Let the buffer keep its present size, until `let_receive_buffer_grow`. Where the system does not know this, do
    nothing."""
    _set_lock(sock, _SOCK_RCVBUF_LOCK)


def let_receive_buffer_grow(sock: socket.socket) -> None:
    """Let the kernel decide about the size again, as it does for a new socket."""
    _set_lock(sock, 0)


def _set_lock(sock: socket.socket, bits: int) -> None:
    if sys.platform == "linux":
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, bits)
        except OSError:  # an older kernel, or the socket is closed
            return
