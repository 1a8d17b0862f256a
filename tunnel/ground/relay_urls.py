"""Which spellings of a URL name the same relay. Nothing is looked up: a name and its address are two relays."""

import functools
import ipaddress
import re

__all__ = ["is_same_relay", "relay_key"]

_PORTS = {"http": 80, "https": 443}
_PLACE = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@]*)(?::([0-9]{0,5}))?")


@functools.lru_cache(maxsize=64)
def relay_key(url: str) -> str:
    """Return the form of a relay's URL that all its spellings share: keep what belongs to one relay under it.

    These make no difference: the case of scheme and host, the port that the scheme has anyway, slashes at the end, and
    the notation of an IPv6 address. Two URLs with the same form lead to the same origin, so a secret for one of them
    may go to the other. The reverse does not hold: a host beyond ASCII has one spelling.
    """
    scheme, separator, rest = url.rstrip("/").partition("://")
    if not separator:
        return url.rstrip("/")
    end = re.search(r"[/?#\\]|$", rest)
    place_end = end.start() if end is not None else len(rest)
    scheme = scheme.lower()
    return f"{scheme}://{_place_key(rest[:place_end], _PORTS.get(scheme))}{rest[place_end:]}"


def is_same_relay(one: str, other: str) -> bool:
    """Whether both URLs name the same relay."""
    return relay_key(one) == relay_key(other)


def _place_key(place: str, default_port: int | None) -> str:
    """Return the form of host and port. One with a password, or that no one can use, is kept as it is.

    So is a host beyond ASCII, as it is or in percent signs: only IDNA knows which of its spellings are one name, and
    Python's lower case makes one of some that are two.
    """
    found = _PLACE.fullmatch(place.lower()) if place.isascii() and "%" not in place else None
    if found is None:
        return place
    host, port = _host_key(found[1]), found[2]
    return host if not port or int(port) == default_port else f"{host}:{int(port)}"


def _host_key(host: str) -> str:
    """Return the form of a host. The dot after a name is kept: a resolver may complete a name without it."""
    if not host.startswith("["):
        return host
    try:
        return f"[{ipaddress.IPv6Address(host[1:-1])}]"
    except ValueError:
        return host
