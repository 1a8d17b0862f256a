"""What a person writes on the command line for places: targets, addresses to listen at, and ports that lead somewhere.

[PROTOCOL/][BIND:]PORT:HOST:PORT     a local port, and the target that it leads to
[PROTOCOL/][BIND:]PORT:SERVICE       ... or the service
HOST:PORT                            an address, or the target of a connection; IPv6 in brackets
SERVICE                              the target of a connection
[HOST:]PORT                          where to listen
"""

import ipaddress
import re
from dataclasses import dataclass

from tunnel_client.errors import UsageError

__all__ = ["PROTOCOLS", "Address", "ForwardSpec", "parse_address", "parse_bind", "parse_forward", "parse_target"]

PROTOCOLS = ("tcp", "udp")  # what a specification may begin with, before a slash; the first needs no mention

_PROTOCOL = re.compile(r"([a-z]+)/(.*)")
_PART = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::|$)")
_HOST_BYTES_MAX = 255  # docs/PROTOCOL.md, 3.1
_PORT_MAX = 65535
_LOOPBACK = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"
_FORM = "write [BIND:]PORT:HOST:PORT or [BIND:]PORT:SERVICE, with an IPv6 address in brackets"


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port; without a port, a service."""

    host: str
    port: int | None = None

    @property
    def real_port(self) -> int:
        """The port of what is no service."""
        assert self.port is not None
        return self.port

    def __str__(self) -> str:
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether this machine alone reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class ForwardSpec:
    """`bind` leads to `target`."""

    protocol: str
    bind: Address
    target: Address

    def __str__(self) -> str:
        return f"{'' if self.protocol == PROTOCOLS[0] else self.protocol + '/'}{self.bind} -> {self.target}"


def parse_forward(text: str) -> ForwardSpec:
    """UsageError with what was expected."""
    protocol, rest = _protocol(text)
    parts = _parts(rest)
    match parts:
        case [bind, port, host, target_port]:
            target = Address(_host(host, text), _port(target_port, text))
        case [port, host, target_port] if _is_port(port):
            bind, target = _LOOPBACK, Address(_host(host, text), _port(target_port, text))
        case [bind, port, service]:
            target = Address(_service(service, text))
        case [port, service]:
            bind, target = _LOOPBACK, Address(_service(service, text))
        case _:
            raise UsageError(f"{text!r} leads nowhere: {_FORM}")
    if protocol == "udp" and target.port is None:
        raise UsageError(f"{text!r}: services are not reached with datagrams: name a HOST:PORT")
    where = _EVERYWHERE if bind == "*" else _host(bind, text)
    return ForwardSpec(protocol, Address(where, _port(port, text, least=0)), target)


def parse_address(text: str) -> Address:
    """HOST:PORT. UsageError with what was expected."""
    match _parts(text):
        case [host, port]:
            return Address(_host(host, text), _port(port, text))
    raise UsageError(f"{text!r} is no address: write HOST:PORT, with an IPv6 address in brackets")


def parse_target(text: str) -> Address:
    """HOST:PORT or [IPV6]:PORT; without a colon the name of a service. UsageError if it is neither."""
    host, colon, port = text.rpartition(":")
    if not colon and text:
        return Address(text)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not _is_port_from(port, 1) or (":" in bare and bare == host):
        raise UsageError(f"{text!r} is no target: write HOST:PORT, [IPV6]:PORT, or the name of a service")
    return Address(bare, int(port))


def parse_bind(text: str) -> Address:
    """PORT, HOST:PORT or [IPV6]:PORT; this machine alone where no host is said. Port 0 is any that is free. UsageError
    if it is none of these."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not _is_port_from(port, 0) or (colon and not bare) or (":" in bare and bare == host):
        raise UsageError(f"{text!r} is no address to listen at: write PORT, or HOST:PORT as in 127.0.0.1:1080")
    return Address(bare if colon else _LOOPBACK, int(port))


def _protocol(text: str) -> tuple[str, str]:
    found = _PROTOCOL.match(text)
    if found is None:
        return PROTOCOLS[0], text
    protocol, rest = found.groups()
    if protocol not in PROTOCOLS:
        raise UsageError(f"{text!r}: {protocol!r} cannot be forwarded, only {' and '.join(PROTOCOLS)} can")
    return protocol, rest


def _parts(text: str) -> list[str]:
    """What stands between colons, an address in brackets counting as one; [] if brackets stand elsewhere."""
    parts = []
    end = 0
    while (found := _PART.match(text, end)) is not None:
        parts.append(found[1] if found[1] is not None else found[2])
        end = found.end()
        if end == len(text) and not text.endswith(":"):
            return parts
        if end == len(text):
            return [*parts, ""]
    return []


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_port_from(text: str, least: int) -> bool:
    return _is_port(text) and least <= int(text) <= _PORT_MAX


def _port(text: str, whole: str, *, least: int = 1) -> int:
    if not _is_port_from(text, least):
        raise UsageError(f"{whole!r}: {text!r} is no port, which is a number from {least} to 65535: {_FORM}")
    return int(text)


def _host(text: str, whole: str) -> str:
    if not text or len(text.encode()) > _HOST_BYTES_MAX or any(letter.isspace() for letter in text):
        raise UsageError(f"{whole!r}: {text!r} is no host: {_FORM}")
    return text


def _service(text: str, whole: str) -> str:
    if _is_port(text):
        raise UsageError(f"{whole!r}: {text} is a port without a host: {_FORM}")
    return _host(text, whole)
