"""The rules for targets: a user reaches only what a rule lists, by exact host or by network, and by port.

The relay checks the target as requested. The exit checks each address that the name resolved to before it dials one.
A Unix socket is reached only by a rule with exactly its path. An SRV record needs a rule that names it, and each host
and port in it needs a rule, too: a change of the record must not widen what its users may reach.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address, ip_network
from posixpath import normpath

import msgspec

from tunnel.ground.special_targets import NO_HOST
from tunnel_servlet.access.addresses import IPAddress, IPNetwork, Kind, Special, embedded_addresses, is_within, special

__all__ = [
    "SRV_TARGET",
    "UDP_RULE",
    "UDP_TARGET",
    "UNIX_TARGET",
    "Rule",
    "Ruleset",
    "Ruling",
    "parse_network",
    "parse_rule",
    "read_host",
]

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAME_BYTES_MAX = 253  # RFC 1035, in text
_PORT_MAX = 65535
_KNOWN_MAX = 64  # rulings on addresses that a ruleset remembers: each user has one, and chooses the addresses
_ANY = "*"
UDP_RULE = "udp/"
UDP_TARGET = "udp:"  # prefix of a target's host, as in tunnel.streams.datagrams
UNIX_TARGET = "unix:"  # the same, as in tunnel.ground.special_targets; a rule has this prefix, too
SRV_TARGET = "srv:"
_SRV_RULE = "srv/"
_UNIX_PATH_BYTES_MAX = 107  # as in tunnel.ground.special_targets


class Ruling(msgspec.Struct, frozen=True):
    """Whether a target is allowed, and why, as text for people. `rule` is the rule that allows it, if one does."""

    allowed: bool
    text: str
    rule: str = ""


class Rule(msgspec.Struct, frozen=True):
    """One rule. Either `network`, `host`, `path` or `record` is set.

    The host * stands for every name and every public address, but not for the loopback addresses of localhost. The
    record * stands for every SRV record.
    """

    text: str
    port: int  # 0: any
    host: str = ""
    network: IPNetwork | None = None
    is_udp: bool = False
    path: str = ""  # of a Unix socket
    record: str = ""  # the name of an SRV record

    def covers_port(self, port: int) -> bool:
        """Whether the rule applies to this port."""
        return self.port in (0, port)


@lru_cache(maxsize=4096)  # each connection asks several times about its host
def read_host(host: str) -> IPAddress | str | None:
    """Return the host as an address or as a normalised name, or None if it is neither.

    A host whose last label is a number is refused unless it is a plain address, because resolvers take 0x7f.1 or
    2130706433 for an address.
    """
    if "%" in host:
        return None
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        name = (host if host.isascii() else host.encode("idna").decode()).lower().removesuffix(".")
    except UnicodeError:
        return None
    labels = name.split(".")
    if len(name) > _NAME_BYTES_MAX or not all(map(_LABEL.fullmatch, labels)) or _NUMBER.fullmatch(labels[-1]):
        return None
    return name


def parse_rule(text: str) -> Rule:
    """Parse a rule: HOST:PORT, ADDRESS/BITS:PORT, [IPv6]:PORT, [IPv6/BITS]:PORT, unix:PATH or srv/NAME.

    Raise ValueError if it is not one. A * stands for any port, or for any public host. A rule that starts with udp/
    applies to datagrams only.
    """
    if text.startswith(UNIX_TARGET):
        return Rule(text, 0, path=_parse_path(text))
    if text.startswith(_SRV_RULE):
        name = text.removeprefix(_SRV_RULE)
        record = _ANY if name == _ANY else read_host(name)
        if not isinstance(record, str) or not record.startswith(("_", _ANY)):
            raise ValueError(f"{text!r} names no SRV record: write it as in srv/_postgres._tcp.example, or srv/*")
        return Rule(text, 0, record=record)
    if text.startswith(UDP_RULE + UNIX_TARGET):
        raise ValueError(f"{text!r}: a Unix socket carries no datagrams: write the rule without {UDP_RULE}")
    if text.startswith(UDP_RULE) and not text.startswith(UDP_RULE * 2):
        return msgspec.structs.replace(parse_rule(text.removeprefix(UDP_RULE)), text=text, is_udp=True)
    if "://" in text:
        raise ValueError(f"{text!r} is a URL: write HOST:PORT, as in db.internal:5432")
    host, colon, port_text = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not a rule: write HOST:PORT, as in db.internal:5432 or 10.0.0.0/8:5432")
    port = _parse_port(text, port_text)
    if host == _ANY:
        return Rule(text, port, host=_ANY)
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ValueError(f"{text!r}: put brackets around an IPv6 address, as in [fd00::1]:5432 or [fd00::/8]:5432")
    host = host[1:-1] if bracketed else host
    if "/" in host or bracketed:
        return Rule(text, port, network=parse_network(host))
    found = read_host(host)
    if found is None:
        raise ValueError(f"{text!r}: {host!r} {NO_HOST}")
    return Rule(text, port, host=found) if isinstance(found, str) else Rule(text, port, network=ip_network(found))


def _parse_path(rule: str) -> str:
    path = rule.removeprefix(UNIX_TARGET)
    if not path.startswith("/") or normpath(path) != path or path.startswith("//") or not path.isprintable():
        raise ValueError(f"{rule!r}: write the whole path of the socket, as in unix:/run/postgresql/.s.PGSQL.5432")
    if len(path.encode()) > _UNIX_PATH_BYTES_MAX:
        raise ValueError(f"{rule!r}: the path of a Unix socket has at most {_UNIX_PATH_BYTES_MAX} bytes")
    return path


def parse_network(text: str) -> IPNetwork:
    """Parse a network in CIDR notation, or a single address. Raise ValueError if it is neither."""
    try:
        return ip_network(text)
    except ValueError as error:
        try:
            meant = ip_network(text, strict=False)
        except ValueError:
            raise ValueError(f"{text!r} is not a network: write it as in 10.0.0.0/8 or fd00::/8") from error
        raise ValueError(f"{text!r} has bits set after its prefix: did you mean {meant}?") from error


def _parse_port(rule: str, text: str) -> int:
    if text == _ANY:
        return 0
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= _PORT_MAX:
        raise ValueError(f"{rule!r}: a port is a number from 1 to {_PORT_MAX}, or * for any, not {text!r}")
    return int(text)


class Ruleset:
    """The targets that one user may reach. `datagrams` holds the rules for UDP, which are separate.

    `resolvable` lists networks, private ones too, that listed names may resolve to.
    """

    def __init__(
        self, rules: Iterable[Rule], resolvable: Iterable[IPNetwork] = (), *, are_datagrams: bool = False
    ) -> None:
        given = tuple(rules)
        self.rules = tuple(rule for rule in given if rule.is_udp == are_datagrams)
        self._resolvable = tuple(resolvable)
        self._label = UDP_RULE if are_datagrams else ""  # prefix of targets in messages
        self.datagrams = self if are_datagrams else Ruleset(given, self._resolvable, are_datagrams=True)
        self._known: dict[tuple[IPAddress, int, str], Ruling] = {}  # of `check_address`: each dial asks three times

    def check_target(self, host: str, port: int) -> Ruling:
        """Check the target as requested. A name is not resolved: the exit checks its addresses by `check_address`."""
        if host.startswith(UDP_TARGET) and self.datagrams is not self:
            return self.datagrams.check_target(host.removeprefix(UDP_TARGET), port)
        if host.startswith((UNIX_TARGET, SRV_TARGET)):
            return self._check_special(host)
        if not 1 <= port <= _PORT_MAX:
            return Ruling(False, f"{port} is not a port: ports are 1 to {_PORT_MAX}")
        found = read_host(host)
        if found is None:
            return Ruling(False, f"{host!r} {NO_HOST}")
        if not isinstance(found, str):
            return self.check_address(found, port)
        for rule in self.rules:
            if rule.covers_port(port) and rule.host in (found, _ANY):
                return _allowed_by(rule)
        return Ruling(False, f"no rule allows {self._label}{found}:{port}")

    def _check_special(self, host: str) -> Ruling:
        if host.startswith(UNIX_TARGET):
            path, what = host.removeprefix(UNIX_TARGET), host
            found = [rule for rule in self.rules if rule.path and rule.path == path]
        else:
            record = read_host(host.removeprefix(SRV_TARGET))
            what = f"{self._label}{_SRV_RULE}{host.removeprefix(SRV_TARGET)}"
            found = [rule for rule in self.rules if rule.record and rule.record in (record, _ANY)]
        return _allowed_by(found[0]) if found else Ruling(False, f"no rule allows {what}")

    def check_found(self, name: str, address: IPAddress, port: int) -> Ruling:
        """Check an address of a host that stands in an SRV record, before it is dialled.

        Either the rules allow the host by its name, and this address of it, or they allow the address itself.
        """
        ruling = self.check_target(name, port)
        if ruling.allowed:
            ruling = self.check_address(address, port, name)
        return ruling if ruling.allowed or not self.check_address(address, port).allowed else Ruling(True, "")

    def check_address(self, address: IPAddress, port: int, name: str = "") -> Ruling:
        """Check an address before it is dialled. `name` is the allowed name that resolved to it."""
        ruling = self._known.get((address, port, name))
        if ruling is None:
            for face in embedded_addresses(address):
                ruling = self._check_embedded(face, port, name)
                if not ruling.allowed:
                    break
            assert ruling is not None  # every address has at least one face
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[address, port, name] = ruling
        return ruling

    def missing_rule(self, host: str, port: int) -> str:
        """Return the text of a rule that would allow a target that `check_target` denies; empty if no rule can."""
        if host.startswith(UDP_TARGET) and self.datagrams is not self:
            return self.datagrams.missing_rule(host.removeprefix(UDP_TARGET), port)
        if host.startswith((UNIX_TARGET, SRV_TARGET)):
            return self._missing_special(host)
        found = read_host(host)
        if found is None or not 1 <= port <= _PORT_MAX:
            return ""
        if isinstance(found, str):
            return f"{self._label}{found}:{port}"
        return self.missing_address_rule(found, port)

    def _missing_special(self, host: str) -> str:
        is_unix = host.startswith(UNIX_TARGET)
        text = host if is_unix else f"{self._label}{_SRV_RULE}{host.removeprefix(SRV_TARGET)}"
        try:
            parse_rule(text)
        except ValueError:
            return ""
        return "" if is_unix and self._label else text

    def missing_address_rule(self, address: IPAddress, port: int, name: str = "") -> str:
        """Return the text of a rule that would allow an address that `check_address` denies; empty if no rule can."""
        for face in embedded_addresses(address):
            found = special(face)
            if found is not None and found.kind is Kind.UNUSABLE:
                return ""
            if not self._check_embedded(face, port, name).allowed:
                return f"{self._label}{f'[{face}]' if face.version == 6 else face}:{port}"
        return ""

    def resolving_clause(self, address: IPAddress, port: int, name: str) -> str:
        """Return a clause for a message about an address that `check_address` denies. It names the setting that would
        let the name lead to this address, and is empty unless the address is private."""
        denied = [face for face in embedded_addresses(address) if not self._check_embedded(face, port, name).allowed]
        found = [special(face) for face in denied]
        networks = sorted({str(each.network) for each in found if each is not None and each.kind is Kind.PRIVATE})
        if len(networks) != 1 or len(found) != 1:
            return ""
        return f'; so would names_may_resolve_to = ["{networks[0]}"] above all tables, for every allowed name'

    def _check_embedded(self, face: IPAddress, port: int, name: str) -> Ruling:
        found = special(face)
        if found is not None and found.kind is Kind.UNUSABLE:
            return Ruling(False, f"{face} is {found.kind.value}")
        for rule in self.rules:
            if rule.covers_port(port) and rule.network is not None and _lists(rule.network, face, found):
                return _allowed_by(rule)
        if name:
            is_local = found is not None and found.kind is Kind.LOOPBACK and self._names_localhost(name, port)
            if found is None or is_local or any(_lists(network, face, found) for network in self._resolvable):
                return Ruling(True, f"{name} may be reached at {face}")
        elif found is None:
            for rule in self.rules:
                if rule.covers_port(port) and rule.host == _ANY:
                    return _allowed_by(rule)
        if name:
            where = f"{name} leads to {face}, and no rule allows that"
        else:
            where = f"no rule allows {self._label}{f'[{face}]' if face.version == 6 else face}:{port}"
        if found is not None:
            where = f"{where}: {face} is {found.kind.value}, which a rule must name by its address or network"
        return Ruling(False, where)

    def _names_localhost(self, host: str, port: int) -> bool:
        """Whether this host always means the machine itself (RFC 6761), and a rule names it. The host * names none."""
        name = read_host(host)
        if not isinstance(name, str) or not f".{name}".endswith(".localhost"):
            return False
        return any(rule.covers_port(port) and rule.host == name for rule in self.rules)


def _allowed_by(rule: Rule) -> Ruling:
    return Ruling(True, f"allowed by {rule.text}", rule.text)


def _lists(network: IPNetwork, face: IPAddress, found: Special | None) -> bool:
    """Whether the network covers the address. It covers a special one only if the network lies in the special range."""
    if not is_within(face, network):
        return False
    if found is None:
        return True
    lowest, highest = int(found.network.network_address), int(found.network.broadcast_address)
    return lowest <= int(network.network_address) and int(network.broadcast_address) <= highest
