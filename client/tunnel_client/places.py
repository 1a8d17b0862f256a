"""Parses the places that a user writes on the command line: targets, listening addresses and forward specifications.

[PROTOCOL/][BIND:]PORT:HOST:PORT     a local port, and the target that it leads to
[PROTOCOL/][BIND:]PORT:SERVICE       a local port, and the service that it leads to
HOST:PORT                            an address, or the target of a connection; IPv6 in brackets
SERVICE                              the service that is the target of a connection
[HOST:]PORT                          an address to listen on
"""

import ipaddress
import re
from dataclasses import dataclass

from tunnel_client.errors import UsageError

__all__ = [
    "EVERYWHERE",
    "PROTOCOLS",
    "Address",
    "ForwardSpec",
    "parse_address",
    "parse_bind",
    "parse_forward",
    "parse_service",
    "parse_target",
]

PROTOCOLS = ("tcp", "udp")  # a specification may begin with one and a slash; the first is the default

_PROTOCOL = re.compile(r"([a-z]+)/(.*)")
_PART = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::|$)")
_URL = re.compile(r"(https?)://([^/?#@]+)(?:/.*)?")
_URL_PORTS = {"http": 80, "https": 443}
_HOST_BYTES_MAX = 255  # docs/PROTOCOL.md, 2.1
_PORT_MAX = 65535
_LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")  # addresses that stand for all of this machine's
_FORM = "write [BIND:]PORT:HOST:PORT or [BIND:]PORT:SERVICE, with an IPv6 address in brackets"
_ADDRESS_FORM = "write HOST:PORT, with an IPv6 address in brackets"
_TARGET_FORM = "write HOST:PORT, [IPV6]:PORT, or the name of a service"
_BIND_FORM = "write PORT, or HOST:PORT as in 127.0.0.1:1080"
_QUOTE_LETTERS = 60  # an error quotes at most this much of what was given


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, or the name of a service if `port` is None."""

    host: str
    port: int | None = None

    @property
    def tcp_port(self) -> int:
        """The port of an address that is not a service."""
        assert self.port is not None
        return self.port

    def __str__(self) -> str:
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class ForwardSpec:
    """The local address `bind`, and the `target` that it leads to."""

    protocol: str
    bind: Address
    target: Address

    def __str__(self) -> str:
        return f"{'' if self.protocol == PROTOCOLS[0] else self.protocol + '/'}{self.bind} -> {self.target}"


def parse_forward(text: str) -> ForwardSpec:
    """Parse a forward specification. Raises UsageError, which names the expected form."""
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
            raise UsageError(f"{_quoted(text)} is not a forward specification: {_FORM}")
    if protocol == "udp" and target.port is None:
        raise UsageError(f"{_quoted(text)}: a service cannot be reached over UDP: name a HOST:PORT")
    where = EVERYWHERE[0] if bind == "*" else _host(bind, text)
    return ForwardSpec(protocol, Address(where, _port(port, text, least=0)), target)


def parse_address(text: str) -> Address:
    """Parse HOST:PORT. Raises UsageError, which names the expected form."""
    match _parts(text):
        case [host, port]:
            return Address(_host(host, text, _ADDRESS_FORM), _port(port, text, form=_ADDRESS_FORM))
    raise UsageError(f"{_quoted(text)} is not an address: {_ADDRESS_FORM}")


def parse_target(text: str) -> Address:
    """Parse HOST:PORT or [IPV6]:PORT; text without a colon is the name of a service. Raises UsageError otherwise."""
    host, colon, port = text.rpartition(":")
    if not colon and text:
        return Address(_host(text, text, _TARGET_FORM))
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not _is_port_from(port, 1) or (":" in bare and bare == host):
        raise UsageError(f"{_quoted(text)} is not a target: {_TARGET_FORM}{_guessed_target(text)}")
    return Address(_host(bare, text, _TARGET_FORM), int(port))


def _guessed_target(text: str) -> str:
    """Return a question that names the target that the user may have meant; empty if that is not evident."""
    found = _URL.fullmatch(text)
    if found:
        scheme, place = found.groups()
        place = place if _is_port(place.rpartition(":")[2]) else f"{place}:{_URL_PORTS[scheme]}"
        return f"; did you mean {_quoted(place)}?"
    host, _, port = text.rpartition(":")
    if _is_port_from(port, 1) and _is_ipv6(host):
        return f"; did you mean {_quoted(f'[{host}]:{port}')}?"
    if _is_ipv6(text.strip("[]")):
        return f"; the port is missing: did you mean {_quoted('[' + text.strip('[]') + ']:PORT')}?"
    if port and not _is_port(port) and ":" not in host:
        return f"; {_quoted(port)} is not a port number"
    return ""


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def parse_service(text: str) -> str:
    """Return the name of a service if it is one. Raises UsageError otherwise."""
    if not _is_name(text):
        form = f"write a name of 1 to {_HOST_BYTES_MAX} bytes without spaces, such as reports"
        raise UsageError(f"{_quoted(text)} is not the name of a service: {form}")
    return text


def parse_bind(text: str) -> Address:
    """Parse an address to listen on: PORT, HOST:PORT or [IPV6]:PORT. Raises UsageError otherwise.

    Without a host, it is the loopback address 127.0.0.1. Port 0 means any free port.
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not _is_port_from(port, 0) or (colon and not bare) or (":" in bare and bare == host):
        raise UsageError(f"{_quoted(text)} is not an address to listen on: {_BIND_FORM}")
    return Address(_host(bare, text, _BIND_FORM) if colon else _LOOPBACK, int(port))


def _protocol(text: str) -> tuple[str, str]:
    found = _PROTOCOL.match(text)
    if found is None:
        return PROTOCOLS[0], text
    protocol, rest = found.groups()
    if protocol not in PROTOCOLS:
        raise UsageError(f"{_quoted(text)}: {protocol!r} cannot be forwarded, only {' and '.join(PROTOCOLS)} can")
    return protocol, rest


def _parts(text: str) -> list[str]:
    """Split the text at colons, with an address in brackets as one part. Return [] if brackets stand elsewhere."""
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


def _port(text: str, whole: str, *, least: int = 1, form: str = _FORM) -> int:
    if not _is_port_from(text, least):
        raise UsageError(f"{_quoted(whole)}: {_quoted(text)} is not a port number from {least} to {_PORT_MAX}: {form}")
    return int(text)


def _host(text: str, whole: str, form: str = _FORM) -> str:
    if not _is_name(text):
        raise UsageError(f"{_quoted(whole)}: {_quoted(text)} is not a host: {form}")
    return text


def _service(text: str, whole: str) -> str:
    if _is_port(text):
        raise UsageError(f"{_quoted(whole)}: {text} is a port without a host: {_FORM}")
    return _host(text, whole)


def _is_name(text: str) -> bool:
    """Whether the text can stand for a host or a service on the wire. Bytes that are no UTF-8 arrive as surrogates."""
    if not text or any(letter.isspace() or not letter.isprintable() for letter in text):
        return False
    return len(text.encode()) <= _HOST_BYTES_MAX


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTE_LETTERS else f"{text[:_QUOTE_LETTERS]}...")
