"""Local ports: bound before anything else is done, so that one that is taken is an error at once."""

import errno
import socket

import structlog

from tunnel_client.errors import UsageError
from tunnel_client.places import Address

__all__ = ["BACKLOG", "address_of", "bind", "cannot_listen"]

BACKLOG = 1024  # connections that wait to be accepted: a crowd may come at once
_log = structlog.get_logger("tunnel")

_ADVICE = {
    errno.EADDRINUSE: "something listens there already: stop it, or choose another port (0: any that is free)",
    errno.EACCES: "ports below 1024 need privileges: choose a higher one",
    errno.EADDRNOTAVAIL: "this machine has no such address: bind one that it has, such as 127.0.0.1",
}


def bind(address: Address, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A socket bound there, not listening yet. UsageError when that is not possible. Whoever binds more than loopback
    is warned: everybody who reaches the port may use the tunnel with our token."""
    try:
        family, _, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=kind, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise cannot_listen(address, error) from None
    sock = socket.socket(family, kind, protocol)
    try:
        if kind == socket.SOCK_STREAM:  # of datagrams it would let others take the port as well
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
    except OSError as error:
        sock.close()
        raise cannot_listen(address, error) from None
    sock.setblocking(False)
    if not address.is_loopback:
        _log.warning(
            "open_to_others",
            bind=str(address_of(sock)),
            text="whoever reaches this port uses the tunnel in your name: bind 127.0.0.1, or guard it with a firewall",
        )
    return sock


def cannot_listen(address: Address, error: Exception) -> UsageError:
    """What to say of a port that cannot be had."""
    advice = _ADVICE.get(getattr(error, "errno", None) or 0, "")
    return UsageError(f"cannot listen on {address}: {advice or error}")


def address_of(sock: socket.socket) -> Address:
    """Where it is bound, with the real port."""
    host, port = sock.getsockname()[:2]
    return Address(host, port)
