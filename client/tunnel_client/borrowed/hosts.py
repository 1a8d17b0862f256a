"""The hosts that are reached through a tunnel, and the placeholder addresses that stand for their names.

This file needs only the standard library and Python 3.8: programs that borrow a tunnel load it by its path.
"""

from __future__ import annotations

import ipaddress
import itertools
from fnmatch import fnmatchcase
from typing import Any, Iterable  # noqa: UP035 - Python 3.8

__all__ = ["Hosts", "Placeholders", "is_literal"]

_EVERYTHING = "*"


class Hosts:
    """A set of hosts, given as patterns of names ("*.internal"), as addresses or as networks ("10.0.0.0/8").

    "*" stands for every host but this machine, which means localhost, and loopback and unspecified addresses.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        if isinstance(patterns, str):
            raise TypeError("hosts is a list of patterns, not one string")
        self.patterns = [_plain(pattern) for pattern in patterns]
        self._networks = [network for network in map(_network, self.patterns) if network is not None]
        self.has_names = any(_network(pattern) is None and pattern != _EVERYTHING for pattern in self.patterns)

    def __contains__(self, host: str) -> bool:
        host = _plain(host)
        address = _address(host)
        if address is not None and any(address in network for network in self._networks):
            return True
        is_here = host == "localhost" or host.endswith(".localhost") or (address is not None and _is_here(address))
        return any(fnmatchcase(host, pattern) for pattern in self.patterns if not (is_here and pattern == _EVERYTHING))


class Placeholders:
    """Gives each name that must not be resolved here an address in 235.0.0.0/8, which belongs to no host.

    The block is reserved, and part of the multicast addresses: a kernel refuses a TCP connection there at once, and
    sends no packet. So a library in C that gets such an address from Python's resolver does not bypass the tunnel.
    (Addresses in 240.0.0.0/4 are routed like others, and a gateway may answer for them.)
    """

    def __init__(self) -> None:
        self._count = itertools.count()
        self._address_of: dict[str, str] = {}
        self._name_of: dict[str, str] = {}

    def address(self, name: str) -> str:
        """Return the address that stands for this name.

        There is no lock, since a fork could leave it locked. So two threads that ask at once may waste an address.
        """
        name = _plain(name)
        known = self._address_of.get(name)
        if known is None:
            fresh = str(ipaddress.IPv4Address("235.0.0.1") + next(self._count))
            self._name_of[fresh] = name
            known = self._address_of.setdefault(name, fresh)
        return known

    def name(self, address: str) -> str | None:
        """Return the name that the address stands for, or None if it is not a placeholder."""
        return self._name_of.get(address[7:] if address.startswith("::ffff:") else address)


def is_literal(host: str) -> bool:
    """Return whether the host is an address rather than a name."""
    return _address(_plain(host)) is not None


def _plain(host: str) -> str:
    return host.lower().rstrip(".").strip("[]").partition("%")[0]


def _address(host: str) -> Any:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _network(pattern: str) -> Any:
    try:
        return ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return None


def _is_here(address: Any) -> bool:
    return bool(address.is_loopback or address.is_unspecified)
