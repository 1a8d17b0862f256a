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

__all__ = ["accept_verified", "connect_near", "fill", "listen_near", "name_of", "native", "park", "unpark", "widen"]

PAIR_TIMEOUT_S = 30.0
_BACKLOG = 16
_TINY_BYTES = 1  # the kernel makes its minimum of it
_USUAL_BYTES = 1 << 20  # the kernel makes its maximum of it
_FILL = bytes(16 * 1024)


def native(sock: socket.socket) -> Any:
    """The C socket beneath: gevent wraps it. Its methods are those that nobody has replaced."""
    return getattr(sock, "_sock", sock)


def listen_near(tiny: bool = False) -> socket.socket:
    """A loopback listener for one connection. `tiny`: the other side shall soon be unable to write."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if tiny:
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
    """Before `connect_near` with a `tiny` listener: let the socket have no room either."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _TINY_BYTES)


def fill(sock: socket.socket) -> int:
    """After it: write until nothing can be written. So many bytes the other side takes away when it is time.

    A connected socket that polls as neither readable nor writable is what a connecting one looks like.
    """
    raw = native(sock)
    filled = 0
    while True:
        try:
            filled += _socket.socket.send(raw, _FILL, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if not _writable(sock, 0):
                return filled


def unpark(sock: socket.socket) -> None:
    """The wait is over: room for writing again."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _USUAL_BYTES)


def widen(near: socket.socket) -> None:
    """The same for the other side of a `tiny` listener."""
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _USUAL_BYTES)


def _writable(sock: socket.socket, seconds: float) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLOUT)
        return bool(poll.poll(seconds * 1000))
    return bool(select.select([], [sock.fileno()], [], seconds)[1])
