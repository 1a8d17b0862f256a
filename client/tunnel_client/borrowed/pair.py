"""Makes an existing socket one end of a loopback pair, and verifies that no other process has the other end.

This file needs only the standard library and Python 3.8: programs that borrow a tunnel load it by its path.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import socket
import time
from typing import Any

__all__ = [
    "PAIR_TIMEOUT_S",
    "accept_verified",
    "connect_near",
    "fill",
    "forget_error",
    "is_writable",
    "listen_near",
    "mute",
    "muted_pair",
    "name_of",
    "native",
    "renew",
    "unmute",
    "widen",
    "wrapped",
]

PAIR_TIMEOUT_S = 30.0
_BACKLOG = 16
_TINY_BYTES = 1  # the kernel raises it to its minimum
_USUAL_BYTES = 1 << 20  # the kernel lowers it to its maximum
_WINDOW_BYTES = 65535  # the largest window without scaling, which the tiny buffer has ruled out at the handshake
_FILL = bytes(16 * 1024)
# the originals: this module is loaded before gevent can replace them
_poll, _select = getattr(select, "poll", None), select.select


def native(sock: socket.socket) -> Any:
    """Return the C socket that a socket of gevent or eventlet wraps, or the socket itself.

    Callers use the methods of `_socket.socket`, which are never replaced.
    """
    return wrapped(getattr(sock, "_sock", sock))


def wrapped(sock: Any) -> Any:
    """Return the socket that a socket of eventlet wraps; any other socket is returned as it is."""
    return sock if isinstance(sock, _socket.socket) else getattr(sock, "fd", sock)


def muted_pair(sock: socket.socket) -> tuple[socket.socket, int]:
    """Make this same socket one end of a loopback pair. Return the other end, and the number of bytes to discard there.

    The socket is then connected, but polls as neither readable nor writable, like one that is still connecting.
    """
    mute(sock)
    with listen_near() as listener:
        near = accept_verified(listener, connect_near(sock, listener.getsockname()[1]))
    try:
        return near, fill(sock)
    except BaseException:
        near.close()
        raise


def listen_near() -> socket.socket:
    """Return a loopback listener for one connection. Its receive buffer is tiny, so the other side can write little."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _TINY_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connect_near(sock: socket.socket, port: int) -> str:
    """Connect this same socket to a loopback listener. Return the name by which the other side recognises it."""
    raw = native(sock)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        address: Any = ("::ffff:127.0.0.1", port, 0, 0)
    else:
        address = ("127.0.0.1", port)
    # A small write after a small write must not wait for the other side's delayed acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    code = _socket.socket.connect_ex(raw, address)
    if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
        if not is_writable(sock, PAIR_TIMEOUT_S):
            code = errno.ETIMEDOUT
        else:
            code = _socket.socket.getsockopt(raw, socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    return name_of(_socket.socket.getsockname(raw))


def name_of(address: Any) -> str:
    """Return an address in the form in which both sides write it."""
    host = address[0]
    return "%s:%d" % (host[7:] if host.startswith("::ffff:") else host, address[1])  # noqa: UP031


def accept_verified(listener: socket.socket, name: str) -> socket.socket:
    """Accept the connection of the socket with this name. Connections of other sockets are closed."""
    deadline = time.monotonic() + PAIR_TIMEOUT_S
    while True:
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        near, peer = listener.accept()
        if name_of(peer) == name:
            return near
        near.close()


def mute(sock: socket.socket) -> None:
    """Shrink the send buffer of the socket. Call it before `connect_near`."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _TINY_BYTES)


def fill(sock: socket.socket) -> int:
    """Write until the socket accepts no more; return the number of bytes, which the other side has to discard.

    Call it after `connect_near`.
    """
    raw = native(sock)
    filled = 0
    timeout = _socket.socket.gettimeout(raw)
    _socket.socket.settimeout(raw, 0.0)
    try:
        while True:
            try:
                filled += _socket.socket.send(raw, _FILL)
            except BlockingIOError:
                if not is_writable(sock, 0):
                    return filled
    finally:
        _socket.socket.settimeout(raw, timeout)


def unmute(sock: socket.socket) -> None:
    """Enlarge the send buffer of the socket again, when it no longer waits for its target."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _USUAL_BYTES)


def widen(near: socket.socket) -> None:
    """Enlarge the receive buffer of the other side again."""
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _USUAL_BYTES)
    if hasattr(socket, "TCP_WINDOW_CLAMP"):
        # The buffer was tiny at the handshake. Without this line, the window would stay small, and 16 MB/s would pass
        # instead of 400.
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, _WINDOW_BYTES)


def forget_error(sock: socket.socket) -> None:
    """Clear the error of the pair's own connection. The caller reports the error of the connect to the target."""
    _socket.socket.getsockopt(native(sock), socket.SOL_SOCKET, socket.SO_ERROR)


def renew(sock: socket.socket) -> None:
    """After a failed connect, put a fresh socket under the same descriptor, so that it can connect again."""
    if sock.fileno() < 0:
        return
    with socket.socket(sock.family, sock.type, sock.proto) as fresh:
        os.set_blocking(fresh.fileno(), os.get_blocking(sock.fileno()))
        os.dup2(fresh.fileno(), sock.fileno(), inheritable=os.get_inheritable(sock.fileno()))


def is_writable(sock: socket.socket, seconds: float) -> bool:
    """Return whether the socket polls as writable, now or within this time.

    This asks the kernel itself: the `select` of gevent and eventlet lets other tasks run, even with a timeout of 0.
    """
    if _poll is not None:
        poll = _poll()
        poll.register(sock.fileno(), select.POLLOUT)
        return bool(poll.poll(seconds * 1000))
    return bool(_select([], [sock.fileno()], [], seconds)[1])
