"""The attachment ids of endpoints in the relay's own process: a marker, and the relay's epoch or a hash.

Clause 6.1 of docs/PROTOCOL.md.

The id of the exit changes with every start of the relay. So a resume that names the exit of an earlier process, whose
connections died with it, is recognised at once.
"""

import hashlib
import struct

__all__ = [
    "PUBLIC_USER",
    "inline_exit_id",
    "is_inline_exit",
    "is_public_endpoint",
    "owner_in",
    "public_endpoint_id",
    "strangers_of",
]

PUBLIC_USER = "relay:public"  # strangers come to services as this user; the name of a configured user has no colon
_MARKER = b"inline\0\0"
_PUBLIC_MARKER = b"public\0\0"
_HASH_BYTES = 8
_EPOCH = struct.Struct("!Q")


def inline_exit_id(epoch: int) -> bytes:
    """Return the id of the inline exit of the relay with this epoch."""
    return _MARKER + _EPOCH.pack(epoch)


def is_inline_exit(identity: bytes) -> bool:
    """Return whether this id is that of an inline exit, of this relay or of another one."""
    return identity.startswith(_MARKER)


def public_endpoint_id(user: str, number: int) -> bytes:
    """Return the id of the endpoint that brings the connections of strangers to the services of this user.

    Each such endpoint of the relay's process needs a new `number`, since an earlier one may still be closing.
    """
    return _PUBLIC_MARKER + hashlib.sha256(f"{number} {user}".encode()).digest()[:_HASH_BYTES]


def is_public_endpoint(identity: bytes) -> bool:
    """Return whether this id is that of an endpoint for strangers. The id of an endpoint elsewhere is a hash."""
    return identity.startswith(_PUBLIC_MARKER)


def strangers_of(owner: str) -> str:
    """Return the name with which the rules are asked about strangers who come to a service of this user.

    Strangers may reach what is public, and not what the user may reach.
    """
    return f"{PUBLIC_USER}:{owner}"


def owner_in(user: str) -> str:
    """Return the user in a name that `strangers_of` has made; an empty string if it is another name."""
    prefix = strangers_of("")
    return user.removeprefix(prefix) if user.startswith(prefix) else ""
