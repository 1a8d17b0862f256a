"""SOCKS as a server reads and answers it: 5 (RFC 1928), without authentication, and 4 with 4a. Bytes to values; no I/O.

The name goes to the relay as it is: nothing is resolved here.
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
_FIELD_BYTES_MAX = 255  # of the strings of version 4, as long as those of version 5 can be


@dataclass(frozen=True, slots=True)
class Socks5Request(ProxyRequest):
    """A request of version 5. For UDP, host and port say where datagrams will come from, if they say anything."""

    def granted(self) -> bytes:
        return self.associated("0.0.0.0", 0)  # of TCP nobody needs to know

    def associated(self, host: str, port: int) -> bytes:
        """The answer for UDP: where to send datagrams to."""
        return bytes([VERSION_5, _SUCCEEDED, 0]) + encode_address(host, port)

    def refused(self, reason: Why, text: str) -> bytes:
        return _reply(_REPLIES.get(reason, _FAILED))


@dataclass(frozen=True, slots=True)
class Socks4Request(ProxyRequest):
    """A request of version 4, or 4a."""

    def granted(self) -> bytes:
        return bytes([0, _GRANTED_4]) + bytes(6)

    def refused(self, reason: Why, text: str) -> bytes:
        return bytes([0, _REJECTED_4]) + bytes(6)


def parse_methods(data: bytes) -> Parsed | None:
    """The first message of version 5 and its answer; None while it is not whole. MalformedError when it asks for a
    password."""
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    size = 2 + data[1]
    if _NO_AUTHENTICATION not in data[2:size]:
        raise MalformedError("the client insists on a password: there is none", bytes([VERSION_5, _NO_METHOD]))
    return Parsed(size, answer=bytes([VERSION_5, _NO_AUTHENTICATION]))


def parse_socks5(data: bytes) -> Parsed | None:
    """The second message of version 5; None while it is not whole."""
    if len(data) < 4:
        return None
    if data[0] != VERSION_5:
        raise MalformedError("no request of SOCKS 5", _reply(_FAILED))
    if data[1] not in (_CONNECT, _UDP_ASSOCIATE):
        raise MalformedError("only CONNECT and UDP ASSOCIATE are known", _reply(_NO_COMMAND))
    try:
        found = parse_address(data, 3)
    except ValueError as error:
        raise MalformedError(str(error), _reply(_NO_ADDRESS_TYPE)) from None
    if found is None:
        return None
    host, port, size = found
    is_udp = data[1] == _UDP_ASSOCIATE
    if not is_udp and (not port or not host):
        raise MalformedError("no target", _reply(_FAILED))
    return Parsed(size, Socks5Request(host, port, is_udp))


def parse_socks4(data: bytes) -> Parsed | None:
    """The only message of version 4; None while it is not whole."""
    if len(data) < 9:
        return None
    refusal = bytes([0, _REJECTED_4]) + bytes(6)
    if data[1] != _CONNECT:
        raise MalformedError("only CONNECT is known", refusal)
    strings = data[8:].split(b"\0")
    is_named = data[4:7] == bytes(3) and data[7] != 0  # 4a
    whole = strings[: 2 if is_named else 1]
    if any(len(string) > _FIELD_BYTES_MAX for string in whole):
        raise MalformedError("a string that is too long", refusal)
    if len(strings) <= len(whole):
        return None
    host = _name(whole[1]) if is_named else str(IPv4Address(data[4:8]))
    port = int.from_bytes(data[2:4], "big")
    if not host or not port:
        raise MalformedError("no target", refusal)
    return Parsed(8 + sum(len(string) + 1 for string in whole), Socks4Request(host, port))


def parse_address(data: bytes, start: int) -> tuple[str, int, int] | None:
    """Host, port, and where they end; None while they are not whole. ValueError for a type that is not known."""
    kind = data[start]
    body = start + 1
    if kind == _NAME:
        if len(data) <= body:
            return None
        body, size = body + 1, data[body]
    elif kind in (_IPV4, _IPV6):
        size = 4 if kind == _IPV4 else 16
    else:
        raise ValueError(f"addresses of type {kind} are not known")
    end = body + size + 2
    if len(data) < end:
        return None
    raw = bytes(data[body : end - 2])
    host = _name(raw) if kind == _NAME else str(IPv4Address(raw) if kind == _IPV4 else IPv6Address(raw))
    return host, int.from_bytes(data[end - 2 : end], "big"), end


def encode_address(host: str, port: int) -> bytes:
    """As `parse_address` reads it. ValueError for a name that is too long."""
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
    """Empty when it is none."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return ""
    return name if name.isprintable() and " " not in name else ""
