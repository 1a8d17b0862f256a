"""The requests and answers of SOCKS 5 (RFC 1928, without authentication), 4 and 4a, for a server. No I/O.

The name of a target goes to the relay as it is; nothing is resolved here.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from tunnel_client.proxy.requests import MalformedError, Parsed, ProxyRequest, Why

__all__ = [
    "Socks4Request",
    "Socks5Request",
    "encode_address",
    "parse_address",
    "parse_methods",
    "parse_socks4",
    "parse_socks5",
]

VERSION_4, VERSION_5 = 4, 5
_NO_AUTHENTICATION, _NO_METHOD = 0, 0xFF
_CONNECT, _UDP_ASSOCIATE = 1, 3
_IPV4, _NAME, _IPV6 = 1, 3, 4
_SUCCEEDED, _FAILED, _NO_COMMAND, _NO_ADDRESS_TYPE = 0, 1, 7, 8  # RFC 1928, 6
_REPLIES = {
    Why.DENIED: 2,
    Why.UNREACHABLE: 4,
    Why.NOT_RESOLVED: 4,
    Why.REFUSED: 5,
    Why.TIMED_OUT: 6,
}
_GRANTED_4, _REJECTED_4 = 90, 91
_FIELD_BYTES_MAX = 255  # the longest string in version 4, as in version 5


@dataclass(frozen=True, slots=True)
class Socks5Request(ProxyRequest):
    """A request of version 5. For UDP, `host` and `port` are the source of the datagrams, if the client names it."""

    def success_answer(self) -> bytes:
        return self.association_answer("0.0.0.0", 0)  # for TCP, no client needs the bound address

    def association_answer(self, host: str, port: int) -> bytes:
        """Return the answer for UDP: the address to which the client sends its datagrams."""
        return bytes([VERSION_5, _SUCCEEDED, 0]) + encode_address(host, port)

    def refusal_answer(self, reason: Why, text: str) -> bytes:
        return _reply(_REPLIES.get(reason, _FAILED))


@dataclass(frozen=True, slots=True)
class Socks4Request(ProxyRequest):
    """A request of version 4, or 4a."""

    def success_answer(self) -> bytes:
        return bytes([0, _GRANTED_4]) + bytes(6)

    def refusal_answer(self, reason: Why, text: str) -> bytes:
        return bytes([0, _REJECTED_4]) + bytes(6)


def parse_methods(data: bytes) -> Parsed | None:
    """Parse the first message of version 5, and return its answer, or None while the message is incomplete.

    Raises MalformedError if the client insists on authentication.
    """
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    size = 2 + data[1]
    if _NO_AUTHENTICATION not in data[2:size]:
        raise MalformedError("a client insists on a password: set it to use none", bytes([VERSION_5, _NO_METHOD]))
    return Parsed(size, answer=bytes([VERSION_5, _NO_AUTHENTICATION]))


def parse_socks5(data: bytes) -> Parsed | None:
    """Parse the second message of version 5; return None while it is incomplete. Raises MalformedError."""
    if len(data) < 4:
        return None
    if data[0] != VERSION_5:
        raise MalformedError("this is not a request of SOCKS 5", _reply(_FAILED))
    if data[1] not in (_CONNECT, _UDP_ASSOCIATE):
        raise MalformedError("this proxy supports only CONNECT and UDP ASSOCIATE", _reply(_NO_COMMAND))
    try:
        found = parse_address(data, 3)
    except ValueError as error:
        raise MalformedError(str(error), _reply(_NO_ADDRESS_TYPE)) from None
    if found is None:
        return None
    host, port, size = found
    is_udp = data[1] == _UDP_ASSOCIATE
    if not is_udp and (not port or not host):
        raise MalformedError("the request names no target", _reply(_FAILED))
    return Parsed(size, Socks5Request(host, port, is_udp))


def parse_socks4(data: bytes) -> Parsed | None:
    """Parse the only message of version 4; return None while it is incomplete. Raises MalformedError."""
    if len(data) < 9:
        return None
    refusal = bytes([0, _REJECTED_4]) + bytes(6)
    if data[1] != _CONNECT:
        raise MalformedError("this proxy supports only CONNECT in SOCKS 4", refusal)
    strings = data[8:].split(b"\0")
    is_named = data[4:7] == bytes(3) and data[7] != 0  # 4a
    whole = strings[: 2 if is_named else 1]
    if any(len(string) > _FIELD_BYTES_MAX for string in whole):
        raise MalformedError("a string of the request is longer than 255 bytes", refusal)
    if len(strings) <= len(whole):
        return None
    host = _name(whole[1]) if is_named else str(IPv4Address(data[4:8]))
    port = int.from_bytes(data[2:4], "big")
    if not host or not port:
        raise MalformedError("the request names no target", refusal)
    return Parsed(8 + sum(len(string) + 1 for string in whole), Socks4Request(host, port))


def parse_address(data: bytes, start: int) -> tuple[str, int, int] | None:
    """Return host, port, and the offset of their end; None while they are incomplete.

    Raises ValueError for an unknown type of address.
    """
    kind = data[start]
    body = start + 1
    if kind == _NAME:
        if len(data) <= body:
            return None
        body, size = body + 1, data[body]
    elif kind in (_IPV4, _IPV6):
        size = 4 if kind == _IPV4 else 16
    else:
        raise ValueError(f"an address of the unknown type {kind}: use 1 (IPv4), 3 (name) or 4 (IPv6)")
    end = body + size + 2
    if len(data) < end:
        return None
    raw = bytes(data[body : end - 2])
    host = _name(raw) if kind == _NAME else str(IPv4Address(raw) if kind == _IPV4 else IPv6Address(raw))
    return host, int.from_bytes(data[end - 2 : end], "big"), end


def encode_address(host: str, port: int) -> bytes:
    """Return the address in the form that `parse_address` reads. Raises ValueError for a name that is too long."""
    try:
        address = ip_address(host)
    except ValueError:
        name = host.encode()
        if len(name) > 255:
            raise ValueError("a name has at most 255 bytes") from None
        return bytes([_NAME, len(name)]) + name + port.to_bytes(2, "big")
    kind = _IPV4 if address.version == 4 else _IPV6
    return bytes([kind]) + address.packed + port.to_bytes(2, "big")


def _reply(code: int) -> bytes:
    return bytes([VERSION_5, code, 0]) + encode_address("0.0.0.0", 0)


def _name(raw: bytes) -> str:
    """Return the name, or an empty string if the bytes are not a name."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return ""
    return name if name.isprintable() and " " not in name else ""
