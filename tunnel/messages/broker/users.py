"""The users of a broker, and what each of them holds of that which there is a limited number of.

A connection through a relay belongs to the user that the relay names. One over TCP belongs to its address, or to its
network of /64: a machine with IPv6 has as many addresses as it likes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from ipaddress import IPv6Address, IPv6Network, ip_address

__all__ = ["OPERATOR", "Holdings", "is_local", "payer_of", "user_of"]

OPERATOR = ""
"""Owns the topics that the command names, and what earlier versions have stored."""


def user_of(writer: asyncio.StreamWriter) -> str:
    """Return the user of a connection."""
    is_tunnel = writer.get_extra_info("tunnel_connection") is not None
    return payer_of(writer.get_extra_info("peername"), is_tunnel=is_tunnel)


def is_local(user: str) -> bool:
    """Whether this user is the machine of the broker: it may delete what belongs to others."""
    kind, _, name = user.partition(" ")
    if kind != "address":
        return False
    return name == "local" or ("/" not in name and ip_address(name).is_loopback)


def payer_of(peer: object, *, is_tunnel: bool) -> str:
    """Return the user for the name of a connection's peer, as `get_extra_info` gives it."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    if is_tunnel:
        return f"user {host}"
    if not host:
        return "address local"
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return f"address {address.ipv4_mapped}"
        if not address.is_loopback:
            return f"address {IPv6Network((int(address) >> 64 << 64, 64))}"
    return f"address {address}"


class Holdings:
    """How many of something each user holds. A user may hold no more than remain free: one alone gets half of all, and
    two that hold the same a third each. The operator may take all."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self.of_user: Counter[str] = Counter()

    def may_add(self, user: str, count: int = 1) -> bool:
        """Whether the user may hold this many more."""
        free = self.most - self.total - count
        return free >= 0 and (user == OPERATOR or self.of_user[user] + count <= free)

    def why_not(self, user: str, count: int, what: str) -> str:
        """Return why the user may not have this many more, or nothing."""
        if self.may_add(user, count):
            return ""
        of_user = (
            "" if user == OPERATOR else f"; {user} has {self.of_user[user]}, and may have no more than remain free"
        )
        return f"the broker has {self.total} {what} and may have {self.most}, {count} more are too many{of_user}"

    def add(self, user: str, count: int = 1) -> None:
        """Count more, or fewer, of a user."""
        self.total += count
        self.of_user[user] += count
        if not self.of_user[user]:
            del self.of_user[user]
