"""Classifies addresses that are not ordinary public hosts, and extracts IPv4 addresses embedded in IPv6 ones.

The tables are our own: `ipaddress.is_private` and `is_global` differ between versions of Python (CVE-2024-4032).
"""

import enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import TypeAlias

import msgspec

__all__ = ["IPAddress", "IPNetwork", "Kind", "Special", "embedded_addresses", "is_within", "special"]

IPAddress: TypeAlias = IPv4Address | IPv6Address
IPNetwork: TypeAlias = IPv4Network | IPv6Network


class Kind(enum.Enum):
    """Why an address is not an ordinary public host. The value completes the sentence "the address is ..."."""

    UNUSABLE = "no single host"  # never dialled, whatever the rules list
    METADATA = "a metadata service of a cloud"
    LOOPBACK = "the exit's own machine"
    LINK_LOCAL = "link-local"
    PRIVATE = "private"
    RESERVED = "reserved"


class Special(msgspec.Struct, frozen=True):
    """A special range. Only a rule whose network lies within it covers its addresses; 0.0.0.0/0 covers none of them."""

    network: IPNetwork
    kind: Kind


# The first matching range counts. Sources: the IANA special-purpose address registries (RFC 6890), the clouds' manuals.
_RANGES: dict[Kind, str] = {
    Kind.METADATA: "169.254.169.254/32 169.254.170.2/32 169.254.170.23/32 100.100.100.200/32 168.63.129.16/32 "
    "192.0.0.192/32 fd00:ec2::254/128 fd00:ec2::23/128 fd20:ce::254/128",
    Kind.UNUSABLE: "0.0.0.0/8 224.0.0.0/4 255.255.255.255/32 ::/128 ff00::/8",
    Kind.LOOPBACK: "127.0.0.0/8 ::1/128",
    Kind.LINK_LOCAL: "169.254.0.0/16 fe80::/10",
    Kind.PRIVATE: "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7 fec0::/10",
    # The documentation, benchmark and protocol ranges, and then all of IPv6 except 2000::/3.
    Kind.RESERVED: "192.0.0.0/24 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.175.48.0/24 "
    "198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 2001::/23 2001:db8::/32 2620:4f:8000::/48 3fff::/20 "
    "::/3 4000::/2 8000::/1",
}
_SPECIALS = tuple(Special(ip_network(text), kind) for kind, texts in _RANGES.items() for text in texts.split())

_MAPPED = IPv6Network("::ffff:0:0/96")
_COMPATIBLE = IPv6Network("::/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_IPV4 = 0xFFFF_FFFF


@lru_cache(maxsize=4096)  # each dial asks, mostly about the same addresses, and an answer compares up to 41 networks
def special(address: IPAddress) -> Special | None:
    """Return the special range that holds the address, or None for an ordinary public host.

    The caller must check each of the address's `embedded_addresses`.
    """
    return next((found for found in _SPECIALS if is_within(address, found.network)), None)


def is_within(address: IPAddress, network: IPNetwork) -> bool:
    """Whether the address lies in the network; an address of the other IP version does not."""
    return address.version == network.version and address in network


def embedded_addresses(address: IPAddress) -> tuple[IPAddress, ...]:
    """Return the addresses that a connection to this one may really reach: the rules must allow all of them.

    IPv4 addresses inside IPv6 ones are extracted: mapped, compatible, NAT64 (RFC 6052), 6to4 (RFC 3056), ISATAP
    (RFC 5214), and both the server and the client of Teredo (RFC 4380).
    """
    if isinstance(address, IPv4Address):
        return (address,)
    value = int(address)
    low = IPv4Address(value & _IPV4)
    if address in _MAPPED or address in _NAT64 or (address in _COMPATIBLE and value > 1):
        return (low,)
    if address in _6TO4:
        return (IPv4Address(value >> 80 & _IPV4),)
    if address in _TEREDO:
        return IPv4Address(value >> 64 & _IPV4), IPv4Address(value & _IPV4 ^ _IPV4)
    if value >> 32 & 0xFDFF_FFFF == 0x0000_5EFE:
        return address, low
    return (address,)
