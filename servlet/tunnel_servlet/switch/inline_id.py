"""The attachment ids of the endpoints in the relay's own process that bring the connections of strangers, and the
names under which the rules know strangers. (The id of the inline exit is in `tunnel.wire`.)"""

import hashlib

__all__ = [
    "PUBLIC_USER",
    "is_own_name",
    "is_public_endpoint",
    "owner_in",
    "public_endpoint_id",
    "strangers_of",
]

PUBLIC_USER = "relay:public"  # strangers come to services as this user; the name of a configured user has no colon
_OWN = "relay:"
_PUBLIC_MARKER = b"public\0\0"
_HASH_BYTES = 8


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


def is_own_name(user: str) -> bool:
    """Return whether this is a name of the relay's own endpoints. The name of a configured user has no colon, and that
    of a user of an identity provider begins in another way."""
    return user.startswith(_OWN)


def owner_in(user: str) -> str:
    """Return the user in a name that `strangers_of` has made; an empty string if it is another name."""
    prefix = strangers_of("")
    return user.removeprefix(prefix) if user.startswith(prefix) else ""
