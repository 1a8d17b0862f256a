"""Proxies in front of the relay whose word about a client's address counts, and what they say: X-Forwarded-For, and the
PROXY header of version 2 (https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt)."""

import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

import msgspec

from tunnel_servlet.access.addresses import IPAddress, IPNetwork

__all__ = ["HEAD_BYTES", "UNIX", "ProxyHeaderError", "TrustedProxies", "body_bytes", "client_in", "plain_address"]

UNIX = "unix"  # the name, among trusted proxies and as a source, of all that comes from a Unix socket
HEAD_BYTES = 16
_BODY_BYTES_MAX = 2048  # a TCP6 address has 36 bytes; the rest are extensions, such as the name of a host
_HOPS_MAX = 32  # entries of X-Forwarded-For that are read, from the last one
_HEAD = struct.Struct("!12sBBH")
_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_LOCAL, _PROXY = 0x20, 0x21
_FAMILIES = {0x11: 4, 0x21: 16}  # of TCP: bytes of an address
_NO_ADDRESS = (0x00, 0x31, 0x32)  # unspecified, and Unix sockets


class ProxyHeaderError(ValueError):
    """A connection of a trusted proxy does not begin with a valid PROXY header."""


class TrustedProxies(msgspec.Struct, frozen=True):
    """The networks of trusted proxies; with `has_unix`, all that comes from a Unix socket is trusted, too. With
    `has_header`, each of their connections begins with a PROXY header."""

    networks: Sequence[IPNetwork] = ()
    has_unix: bool = False
    has_header: bool = False

    def trusts(self, address: str) -> bool:
        """Whether this is the address of a trusted proxy."""
        if address == UNIX:
            return self.has_unix
        found = _address(address)
        return found is not None and self._contains(found)

    def client_of(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the client's address that the values of X-Forwarded-For name in a request from `peer`; an empty string
        if they name none, or if `peer` is not trusted.

        Each proxy appends the address from which a request has come to it, so only the last entries are the words of
        trusted proxies: the client is the last one that is not a proxy. What stands before it may be forged.
        """
        if not forwarded or not self.trusts(peer):
            return ""
        client = ""
        for entry in reversed(",".join(forwarded).rsplit(",", _HOPS_MAX)[-_HOPS_MAX:]):
            found = _address(_without_port(entry.strip()))
            if found is None:
                break
            client = str(found)
            if not self._contains(found):
                break
        return client

    def _contains(self, address: IPAddress) -> bool:
        return any(address.version == network.version and address in network for network in self.networks)


def body_bytes(head: bytes) -> int:
    """Return the number of bytes that follow these first 16 bytes of a PROXY header. Raise ProxyHeaderError if they are
    none."""
    signature, command, _, size = _HEAD.unpack(head)
    if signature != _SIGNATURE:
        raise ProxyHeaderError("it does not begin with a PROXY header of version 2")
    if command not in (_LOCAL, _PROXY):
        raise ProxyHeaderError(f"its PROXY header has the unknown version or command {command:#04x}")
    if size > _BODY_BYTES_MAX:
        raise ProxyHeaderError(f"its PROXY header has {size} bytes, more than {_BODY_BYTES_MAX}")
    return int(size)


def client_in(head: bytes, body: bytes) -> tuple[str, int] | None:
    """Return the client's address and port that a PROXY header names, or None if it names none, as that of a proxy's
    own probe. Raise ProxyHeaderError if it is not valid."""
    _, command, family, _ = _HEAD.unpack(head)
    if command == _LOCAL or family in _NO_ADDRESS:
        return None
    size = _FAMILIES.get(family)
    if size is None:
        raise ProxyHeaderError(f"its PROXY header is of no TCP connection: {family:#04x}")
    if len(body) < 2 * size + 4:
        raise ProxyHeaderError(f"its PROXY header has only {len(body)} bytes of addresses")
    packed = body[:size]
    address = plain_address(IPv4Address(packed) if size == 4 else IPv6Address(packed))
    return str(address), int.from_bytes(body[2 * size : 2 * size + 2])


def _without_port(entry: str) -> str:
    """Return the address of an entry, which some proxies write with a port."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    host, _, port = entry.partition(":")
    return host if port.isdecimal() else entry


def _address(text: str) -> IPAddress | None:
    try:
        return plain_address(ip_address(text.partition("%")[0]))
    except ValueError:
        return None


def plain_address(address: IPAddress) -> IPAddress:
    """Return the IPv4 address that an IPv6 address stands for, if it does."""
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
