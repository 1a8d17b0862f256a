"""Parses the places that a user writes on the command line: targets, listening addresses and forward specifications.

[PROTOCOL/][BIND:]PORT:HOST:PORT     a local port, and the target that it leads to
[PROTOCOL/][BIND:]PORT:SERVICE       a local port, and the service that it leads to
[PROTOCOL/][BIND:]PORT:srv/NAME      a local port, and the SRV record that names the target
[BIND:]PORT:unix:PATH                a local port, and the Unix socket at the exit that it leads to
[PROTOCOL/][BIND:]PORT-PORT:HOST:PORT-PORT
                                     a range of local ports, and as many ports of one host
unix:PATH:TARGET                     a local Unix socket, and any of the targets above
HOST:PORT                            an address, or the target of a connection; IPv6 in brackets
SERVICE, srv/NAME, unix:PATH         other targets of a connection
[HOST:]PORT                          an address to listen on
[PROTOCOL/]SERVICE                   the name of a service to offer
"""

import ipaddress
import re
from dataclasses import dataclass

from tunnel.ground.special_targets import (
    SPECIAL_PORT,
    SRV_PREFIX,
    SRV_SHOWN,
    UNIX_PATH_BYTES_MAX,
    UNIX_PREFIX,
    target_text,
)
from tunnel_client.errors import UsageError

__all__ = [
    "EVERYWHERE",
    "PROTOCOLS",
    "Address",
    "ForwardSpec",
    "is_datagram_service",
    "parse_address",
    "parse_bind",
    "parse_forward",
    "parse_forwards",
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
EVERYWHERE = ("0.0.0.0", "::")  # all IPv4 addresses of this machine; all of its addresses
_FORM = "write [BIND:]PORT:HOST:PORT or [BIND:]PORT:SERVICE, with an IPv6 address in brackets"
_RANGE_FORM = "write both ranges with the same number of ports, as in 8000-8010:db.internal:8000-8010"
_ADDRESS_FORM = "write HOST:PORT, with an IPv6 address in brackets, or unix:PATH"
_TARGET_FORM = "write HOST:PORT, [IPV6]:PORT, unix:PATH, srv/NAME, or the name of a service"
_BIND_FORM = "write PORT, or HOST:PORT as in 127.0.0.1:1080"
_QUOTE_LETTERS = 60  # an error quotes at most this much of what was given
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})", re.ASCII)
_RANGE_PORTS_MAX = 1000  # each takes a file descriptor
_SRV_NAME = re.compile(r"_[^.]+\._[^.]+\.[^.].*")  # RFC 2782: _service._protocol.name
_UDP_SERVICE = "udp/"  # before the name of a service whose streams carry datagrams


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, or the name of a service if `port` is None.

    Unix sockets and SRV records have a prefix in `host`, and the port SPECIAL_PORT (docs/PROTOCOL.md, 2.1).
    """

    host: str
    port: int | None = None

    @property
    def path(self) -> str:
        """The path of a Unix socket; empty for every other address."""
        return self.host.removeprefix(UNIX_PREFIX) if self.host.startswith(UNIX_PREFIX) else ""

    @property
    def tcp_port(self) -> int:
        """The port of an address that is not a service."""
        assert self.port is not None
        return self.port

    def __str__(self) -> str:
        return target_text(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.path:
            return True
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


def parse_forwards(text: str) -> list[ForwardSpec]:
    """Parse a forward specification in which both ports may be ranges. Raises UsageError, which names the form."""
    protocol, rest = _protocol(text)
    parts = [] if UNIX_PREFIX in rest else _parts(rest)
    local = {2: 0, 3: 0 if _is_port_or_range(parts[0]) else 1, 4: 1}.get(len(parts)) if parts else None
    if local is None or not any(_RANGE.fullmatch(part) for part in (parts[local], parts[-1])):
        return [parse_forward(text)]
    if len(parts) - local != 3:
        if not _RANGE.fullmatch(parts[local]):
            return [parse_forward(text)]  # a service may be called 1-2
        raise UsageError(f"{_quoted(text)}: a range of ports cannot lead to a service: {_RANGE_FORM}")
    near, far = _ports(parts[local], text), _ports(parts[-1], text)
    if len(near) != len(far):
        raise UsageError(f"{_quoted(text)}: {len(near)} local ports cannot lead to {len(far)} ports: {_RANGE_FORM}")
    bind, host = parts[:local], parts[-2]
    rows = [[*bind, str(one), host, str(other)] for one, other in zip(near, far, strict=True)]
    return [parse_forward(f"{protocol}/{':'.join(map(_bracketed, row))}") for row in rows]


def _is_port_or_range(text: str) -> bool:
    return _is_port(text) or _RANGE.fullmatch(text) is not None


def _bracketed(part: str) -> str:
    return f"[{part}]" if ":" in part else part


def _ports(text: str, whole: str) -> range:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise UsageError(f"{_quoted(whole)}: {_quoted(text)} is one port, and the other end a range: {_RANGE_FORM}")
    first, last = _port(found[1], whole), _port(found[2], whole)
    if not 0 <= last - first < _RANGE_PORTS_MAX:
        raise UsageError(
            f"{_quoted(whole)}: {text} is not a range of 1 to {_RANGE_PORTS_MAX} ports, the lowest first: {_RANGE_FORM}"
        )
    return range(first, last + 1)


def parse_forward(text: str) -> ForwardSpec:
    """Parse a forward specification of one port. Raises UsageError, which names the expected form."""
    protocol, rest = _protocol(text)
    near, colon, path = rest.removeprefix(UNIX_PREFIX).partition(f":{UNIX_PREFIX}")
    if rest.startswith(UNIX_PREFIX):
        local, _, far = rest.removeprefix(UNIX_PREFIX).partition(":")
        bind, target = _unix(local, text), parse_target(far)
    elif colon:
        bind, target = parse_bind("0.0.0.0" + near[1:] if near.startswith("*:") else near), _unix(path, text, far=True)
    else:
        bind, target = _ports_spec(rest, text)
    if protocol == "udp":
        if bind.path or target.path:
            raise UsageError(f"{_quoted(text)}: a Unix socket carries no datagrams: leave udp/ out, or name a port")
        if target.port is None:
            target = Address(_UDP_SERVICE + target.host)
    return ForwardSpec(protocol, bind, target)


def _ports_spec(rest: str, text: str) -> tuple[Address, Address]:
    """Return the local port and the target of a specification without Unix sockets."""
    if rest.startswith(("/", "./", "../")):
        raise UsageError(f"{_quoted(text)} begins with a path: did you mean {_quoted(UNIX_PREFIX + rest)}?")
    if "://" in rest:
        raise UsageError(f"{_quoted(text)} is not a forward specification: {_FORM}{_guessed_forward(rest)}")
    if ":srv:" in rest:
        raise UsageError(f"{_quoted(text)}: did you mean {_quoted(rest.replace(':srv:', ':' + SRV_SHOWN))}?")
    parts = _parts(rest)
    match parts:
        case [bind, port, host, target_port]:
            target = Address(_host(host, text), _port(target_port, text))
        case [port, host, target_port] if _is_port(port):
            bind, target = _LOOPBACK, Address(_host(host, text), _port(target_port, text))
        case [host, _, port] if _is_port(parts[1]) and _is_port(port):
            raise UsageError(f"{_quoted(text)}: {port} is a port without a host: {_FORM}{_guessed_forward(rest)}")
        case [bind, port, service]:
            target = _service_or_srv(service, text)
        case [port, service]:
            bind, target = _LOOPBACK, _service_or_srv(service, text)
        case _:
            raise UsageError(f"{_quoted(text)} is not a forward specification: {_FORM}{_guessed_forward(rest)}")
    where = EVERYWHERE[0] if bind == "*" else _host(bind, text)
    return Address(where, _port(port, text, least=0)), target


def _guessed_forward(text: str) -> str:
    """Return the end of an error: a guess at what the user meant; empty if none is evident."""
    near, _, far = text.partition(":")
    if _is_port(near):
        url, address = _URL.fullmatch(far), far.rpartition(":")
        if url:
            return f"; did you mean {_quoted(f'{near}:{_place_of(url)}')}?"
        if _is_port_from(address[2], 1) and _is_ipv6(address[0]):
            return f"; did you mean {_quoted(f'{near}:[{address[0]}]:{address[2]}')}?"
        return ""
    host, _, ports = text.partition(":")
    far_port, _, local = ports.partition(":")
    if _is_port_from(far_port, 1) and _is_port_from(local, 0) and _is_name(host):
        return f"; did you mean {_quoted(f'{local}:{host}:{far_port}')}?"
    return ""


def _place_of(url: re.Match[str]) -> str:
    scheme, place = url.groups()
    return place if _is_port(place.rpartition(":")[2]) else f"{place}:{_URL_PORTS[scheme]}"


def _service_or_srv(name: str, text: str) -> Address:
    return _srv(name, text) if name.startswith(SRV_SHOWN) else Address(_service(name, text))


def _srv(text: str, whole: str) -> Address:
    name = text.removeprefix(SRV_SHOWN)
    if not _SRV_NAME.fullmatch(name) or not _is_name(SRV_PREFIX + name):
        form = "write _SERVICE._PROTOCOL.DOMAIN, as in srv/_postgres._tcp.example"
        raise UsageError(f"{_quoted(whole)}: {_quoted(name)} is not the name of an SRV record: {form}")
    return Address(SRV_PREFIX + name, SPECIAL_PORT)


def _unix(path: str, whole: str, *, far: bool = False) -> Address:
    """Return the Unix socket with this path, which must be absolute if the socket is at the far side."""
    if not path.startswith(("/",) if far else ("/", "./", "../")) or not _is_name(path) or path.endswith("/"):
        form = "write it as in unix:/run/postgresql/.s.PGSQL.5432"
        raise UsageError(f"{_quoted(whole)}: {_quoted(path)} is not the path of a Unix socket: {form}")
    if len(path.encode()) > UNIX_PATH_BYTES_MAX:
        raise UsageError(
            f"{_quoted(whole)}: the path of a Unix socket has at most {UNIX_PATH_BYTES_MAX} bytes, not "
            f"{len(path.encode())}: choose a shorter one"
        )
    return Address(UNIX_PREFIX + path, SPECIAL_PORT)


def parse_address(text: str) -> Address:
    """Parse HOST:PORT or unix:PATH. Raises UsageError, which names the expected form."""
    if text.startswith(UNIX_PREFIX):
        return _unix(text.removeprefix(UNIX_PREFIX), text)
    match _parts(text):
        case [host, port]:
            return Address(_host(host, text, _ADDRESS_FORM), _port(port, text, form=_ADDRESS_FORM))
    raise UsageError(f"{_quoted(text)} is not an address: {_ADDRESS_FORM}{_guessed_address(text)}")


def _guessed_address(text: str) -> str:
    found = _URL.fullmatch(text)
    place = f"{_LOOPBACK}:{text}" if _is_port_from(text, 1) else _place_of(found) if found else ""
    return f"; did you mean {_quoted(place)}?" if place else ""


def parse_target(text: str) -> Address:
    """Parse HOST:PORT, [IPV6]:PORT, unix:PATH or srv/NAME; other text without a colon is the name of a service.

    Raises UsageError for anything else.
    """
    if text.startswith(UNIX_PREFIX):
        return _unix(text.removeprefix(UNIX_PREFIX), text, far=True)
    if text.startswith(SRV_SHOWN):
        return _srv(text, text)
    host, colon, port = text.rpartition(":")
    if not colon and text:
        return Address(_host(text, text, _TARGET_FORM))
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not _is_port_from(port, 1) or (":" in bare and bare == host) or "@" in bare:
        raise UsageError(f"{_quoted(text)} is not a target: {_TARGET_FORM}{_guessed_target(text)}")
    return Address(_host(bare, text, _TARGET_FORM), int(port))


def _guessed_target(text: str) -> str:
    """Return the end of an error: a guess at what the user meant, or what is wrong; empty if neither is evident."""
    found = _URL.fullmatch(text)
    if found:
        return f"; did you mean {_quoted(_place_of(found))}?"
    if text.startswith(":") and text.count(":") == 1 and _is_port_from(text[1:], 1):
        return f"; the host is missing: did you mean {_quoted('HOST' + text)}?"
    host, _, port = text.rpartition(":")
    if host and not port and ":" not in host:
        return f"; the port is missing: did you mean {_quoted(host + ':PORT')}?"
    user, at, place = text.rpartition("@")
    if at and user and place and "/" not in place:
        return f"; did you mean {_quoted(place)}?"
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
    """Return the text if it is the name of a service. Raises UsageError otherwise.

    A name that begins with udp/ belongs to a service of datagrams.
    """
    if not _is_name(text) or text in (_UDP_SERVICE, SRV_SHOWN) or text.startswith((SRV_SHOWN, UNIX_PREFIX)):
        form = f"write a name of 1 to {_HOST_BYTES_MAX} bytes without spaces, such as reports"
        raise UsageError(f"{_quoted(text)} is not the name of a service: {form}")
    return text


def is_datagram_service(name: str) -> bool:
    """Return whether the streams of the service carry datagrams."""
    return name.startswith(_UDP_SERVICE)


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
        near = whole.removesuffix(f":{text}")
        guess = f"; did you mean {_quoted(f'{text}:{near}:{text}')}?" if near != text and not _is_port(near) else ""
        raise UsageError(f"{_quoted(whole)}: {text} is a port without a host: {_FORM}{guess}")
    if text.startswith("/"):
        raise UsageError(f"{_quoted(whole)}: {_quoted(text)} is a path: did you mean {_quoted(UNIX_PREFIX + text)}?")
    return _host(text, whole)


def _is_name(text: str) -> bool:
    """Return whether the text can be the name of a host or a service on the wire.

    Bytes of the command line that are not UTF-8 arrive as surrogates, which are refused.
    """
    if not text or any(letter.isspace() or not letter.isprintable() for letter in text):
        return False
    return len(text.encode()) <= _HOST_BYTES_MAX


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTE_LETTERS else f"{text[:_QUOTE_LETTERS]}...")
