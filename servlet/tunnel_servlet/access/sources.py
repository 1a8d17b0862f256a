"""The sources of connections: IPv4 addresses and IPv6 networks, and which of them holds most."""

from collections.abc import Hashable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

__all__ = ["PREFIXES", "SourceGroup", "networks_of", "source_of"]

PREFIXES = (48, 56, 64)  # bits of IPv6 networks that one site, one household and one link get
_IPV6_BITS = 128
_T = TypeVar("_T", bound=Hashable)


def source_of(address: str) -> str:
    """Return the source that a connection from this address counts for: the address, or for IPv6 its /64 network."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return _network(int(found), PREFIXES[-1])


def networks_of(source: str) -> list[str]:
    """Return the networks in which a source lies, the largest first, and the source itself as the last."""
    try:
        found = IPv6Address(source)
    except ValueError:
        return [source]
    return [_network(int(found), prefix) for prefix in PREFIXES]


def _network(address: int, prefix: int) -> str:
    host_bits = _IPV6_BITS - prefix
    return str(IPv6Address(address >> host_bits << host_bits))


class SourceGroup(Generic[_T]):
    """The connections of one network, by the networks in it, down to the sources. Each call takes constant time."""

    __slots__ = ("_by_count", "_most", "_parts", "count")

    def __init__(self) -> None:
        self.count = 0  # connections
        self._parts: dict[str, SourceGroup[_T]] = {}  # empty in a source
        # By number of connections, the names of the parts that have it. In a source, the connections themselves.
        self._by_count: dict[int, dict[str | _T, None]] = {}
        self._most = 0  # the highest of these numbers

    def add(self, networks: Sequence[str], connection: _T) -> None:
        """Add a connection from the last of these networks."""
        self._change(networks, connection, 1)

    def remove(self, networks: Sequence[str], connection: _T) -> None:
        """Remove a connection that was added for the same networks."""
        self._change(networks, connection, -1)

    def part(self, network: str) -> "SourceGroup[_T] | None":
        """Return the group of a network in this one; None if no connection comes from there."""
        return self._parts.get(network)

    def oldest_of_largest(self) -> _T | None:
        """Return the oldest connection of the source that holds most in the network that holds most, and so on.

        So an attacker with many networks loses connections before a neighbour in the same network does, and both
        before a source elsewhere. Return None if there is no connection.
        """
        group = self
        while group.count:
            name = next(iter(group._by_count[group._most]))
            if not isinstance(name, str):
                return name
            group = group._parts[name]
        return None

    def _change(self, networks: Sequence[str], connection: _T, step: int) -> None:
        self.count += step
        if not networks:
            self._move(connection, int(step < 0), int(step > 0))
            return
        name = networks[0]
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = SourceGroup()
        before = part.count
        part._change(networks[1:], connection, step)
        self._move(name, before, part.count)
        if not part.count:
            del self._parts[name]

    def _move(self, name: str | _T, before: int, after: int) -> None:
        if before:
            alike = self._by_count[before]
            del alike[name]
            if not alike:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[name] = None
        if after > self._most:
            self._most = after
        elif self._most not in self._by_count:
            self._most -= 1  # a part that had most has one less now
