"""Where the relay accepts connections from people without the tunnel, for a service (PROTOCOL 2.11)."""

import re
from typing import Any

import msgspec

__all__ = ["PublicPlace", "decode_public_place", "encode_public_place"]

_TEXT_BYTES_MAX = 127  # so that the length before the text is UTF-8, too, for relays that do not know the option (2.8)
_TEXT = re.compile(rb"(http|tcp)(\+proxy)? (?:([1-9][0-9]{0,4})|((?=[0-9._-]*[a-z])[a-z0-9_][a-z0-9._-]*))")
_PORT_MAX = 65535


class PublicPlace(msgspec.Struct, frozen=True):
    """A port of the relay, or else the name of a host at the relay's ports for public HTTP.

    With `http`, the relay reads the requests, and tells the service the address of each client in X-Forwarded-For. With
    `proxy_header`, it tells the address in a PROXY header (version 2) before everything else.
    """

    port: int = 0
    host: str = ""
    http: bool = False
    proxy_header: bool = False

    def check(self) -> None:
        """Raise ValueError if the place cannot be announced."""
        encode_public_place(self)

    def __str__(self) -> str:
        return f"port {self.port}" if self.port else self.host


def encode_public_place(place: PublicPlace) -> bytes:
    """Encode the value of the option. Raise ValueError if the place cannot be announced."""
    where = place.host if place.host else str(place.port)
    raw = f"{'http' if place.http else 'tcp'}{'+proxy' if place.proxy_header else ''} {where}".encode()
    if decode_public_place(raw) != place:
        raise ValueError(f"{place} is no public place: give a port from 1 to {_PORT_MAX}, or the name of a host")
    return raw


def decode_public_place(raw: bytes) -> Any:
    """Decode the value of the option. Return None if it is malformed."""
    found = _TEXT.fullmatch(raw) if len(raw) <= _TEXT_BYTES_MAX else None
    if found is None:
        return None
    port, host = int(found[3] or 0), (found[4] or b"").decode()
    if port > _PORT_MAX or (host and found[1] != b"http"):
        return None
    return PublicPlace(port, host, found[1] == b"http", found[2] is not None)
