"""A verified loopback pair around a socket that exists: nobody else on the machine can slip in between.

It needs nothing but the standard library, and Python 3.8: programs that borrow a tunnel load this file by its path.
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
    "listen_near",
    "name_of",
    "native",
    "park",
    "parked_pair",
    "renew",
    "unpark",
    "widen",
]

PAIR_TIMEOUT_S = 30.0
_BACKLOG = 16
_TINY_BYTES = 1  # the kernel makes its minimum of it
_USUAL_BYTES = 1 << 20  # the kernel makes its maximum of it
_WINDOW_BYTES = 65535  # the largest without scaling, which was settled at the handshake
_FILL = bytes(16 * 1024)


def native(sock: socket.socket) -> Any:
    """The C socket beneath: gevent wraps it. Its methods are those that nobody has replaced."""
    return getattr(sock, "_sock", sock)


def parked_pair(sock: socket.socket) -> tuple[socket.socket, int]:
    """The other side of a pair with this very socket, and how many bytes to take away before its first one.

    The socket is connected, but polls as neither readable nor writable: what a connecting one looks like.
    """
    park(sock)
    with listen_near() as listener:
        near = accept_verified(listener, connect_near(sock, listener.getsockname()[1]))
    try:
        return near, fill(sock)
    except BaseException:
        near.close()
        raise


def listen_near() -> socket.socket:
    """A loopback listener for one connection, to which not much can be written."""
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
    """Connect this very socket to a loopback listener; the name by which the other side shall know it."""
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
        if not _writable(sock, PAIR_TIMEOUT_S):
            code = errno.ETIMEDOUT
        else:
            code = _socket.socket.getsockopt(raw, socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    return name_of(_socket.socket.getsockname(raw))


def name_of(address: Any) -> str:
    """How both sides write an address down."""
    host = address[0]
    return "%s:%d" % (host[7:] if host.startswith("::ffff:") else host, address[1])  # noqa: UP031


def accept_verified(listener: socket.socket, name: str) -> socket.socket:
    """The connection of the socket with this name. Strangers who were faster are turned away."""
    deadline = time.monotonic() + PAIR_TIMEOUT_S
    while True:
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        near, peer = listener.accept()
        if name_of(peer) == name:
            return near
        near.close()


def park(sock: socket.socket) -> None:
    """Before `connect_near`: let the socket have little room for writing."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _TINY_BYTES)


def fill(sock: socket.socket) -> int:
    """After `connect_near`: write until nothing can be written. So many bytes the other side has to take away."""
    raw = native(sock)
    filled = 0
    timeout = _socket.socket.gettimeout(raw)
    _socket.socket.settimeout(raw, 0.0)
    try:
        while True:
            try:
                filled += _socket.socket.send(raw, _FILL)
            except BlockingIOError:
                if not _writable(sock, 0):
                    return filled
    finally:
        _socket.socket.settimeout(raw, timeout)


def unpark(sock: socket.socket) -> None:
    """The wait is over: room for writing again."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _USUAL_BYTES)


def widen(near: socket.socket) -> None:
    """The same for the other side."""
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _USUAL_BYTES)
    if hasattr(socket, "TCP_WINDOW_CLAMP"):
        # A buffer that was tiny at the handshake left a tiny window for good: 16 MB/s instead of 400.
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, _WINDOW_BYTES)


def forget_error(sock: socket.socket) -> None:
    """That of the pair, which is told in another way."""
    _socket.socket.getsockopt(native(sock), socket.SOL_SOCKET, socket.SO_ERROR)


def renew(sock: socket.socket) -> None:
    """After a connect that failed: a fresh socket under the same descriptor, so that it can be tried again."""
    if sock.fileno() < 0:
        return
    with socket.socket(sock.family, sock.type, sock.proto) as fresh:
        os.set_blocking(fresh.fileno(), os.get_blocking(sock.fileno()))
        os.dup2(fresh.fileno(), sock.fileno(), inheritable=os.get_inheritable(sock.fileno()))


def _writable(sock: socket.socket, seconds: float) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLOUT)
        return bool(poll.poll(seconds * 1000))
    return bool(select.select([], [sock.fileno()], [], seconds)[1])
