"""The first bytes inside an encrypted stream, which bind it to the CONNECT that opened it (PROTOCOL 3.13).

The relay reads CONNECT and could send it elsewhere. The initiator therefore repeats target and route key inside the
stream, and the acceptor compares them with the CONNECT that it received.
"""

import struct

from tunnel.wire import Target

__all__ = ["VERDICT_SAME", "binding_of"]

_VERSION = 1
_HEAD = struct.Struct("!BBHB")  # version, target kind, port, size of the host
VERDICT_SAME = b"\x01"
"""The byte with which the acceptor confirms the binding. It sends no other verdict."""


def binding_of(target: Target, route_key: bytes) -> bytes:
    """Return the bytes that the initiator sends first and the acceptor expects."""
    host = target.host.encode()
    return _HEAD.pack(_VERSION, target.kind, target.port, len(host)) + host + route_key
