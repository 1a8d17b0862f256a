"""Binds local ports. `tunnel forward` and `tunnel proxy` do so before they attach, to report a port in use at once."""

import errno
import socket

import structlog

from tunnel.ground.special_targets import SPECIAL_PORT, UNIX_PREFIX
from tunnel_client.errors import UsageError
from tunnel_client.places import Address

__all__ = ["BACKLOG", "address_of", "bind", "cannot_listen"]

BACKLOG = 1024  # connections that wait to be accepted; many may come together
_log = structlog.get_logger("tunnel")

_ADVICE = {
    errno.EADDRINUSE: "something listens there already: stop it, or choose another port (0 for any free one)",
    errno.EACCES: "ports below 1024 need privileges: choose a higher one",
    errno.EADDRNOTAVAIL: "this machine has no such address: bind one that it has, such as 127.0.0.1",
}


def bind(address: Address, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket that is bound to the address, but not listening yet. Raises UsageError if that is not possible.

    A warning is logged for an address other than loopback: every machine that reaches the port can use the tunnel with
    our token.
    """
    try:
        family, _, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=kind, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise cannot_listen(address, error) from None
    sock = socket.socket(family, kind, protocol)
    try:
        if kind == socket.SOCK_STREAM:  # for UDP, SO_REUSEADDR would let other sockets take the port as well
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
            text="every machine that reaches this port can use the tunnel with your token: bind 127.0.0.1, or protect "
            "the port with a firewall",
        )
    return sock


def cannot_listen(address: Address, error: Exception) -> UsageError:
    """Return the error for a port that cannot be bound, with advice."""
    if isinstance(error, socket.gaierror | UnicodeError):
        advice = "the name has no address: bind one that this machine has, such as 127.0.0.1"
    else:
        advice = _ADVICE.get(getattr(error, "errno", None) or 0, "") or getattr(error, "strerror", "") or str(error)
    return UsageError(f"cannot listen on {address}: {advice}")


def address_of(sock: socket.socket) -> Address:
    """Return the address that the socket is bound to, with its actual port."""
    if sock.family == socket.AF_UNIX:
        return Address(UNIX_PREFIX + sock.getsockname(), SPECIAL_PORT)
    host, port = sock.getsockname()[:2]
    return Address(host, port)
