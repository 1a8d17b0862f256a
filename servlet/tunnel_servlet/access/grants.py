"""The grants of users: decisions for the relay's switch, and rules for the exit. By default users may do nothing."""

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import TypeAlias

import msgspec

from tunnel.wire import PublicPlace, RejectReason, Target, TargetKind
from tunnel_servlet.access.addresses import IPAddress, IPNetwork
from tunnel_servlet.access.certificates import CertificateTable
from tunnel_servlet.access.rules import UDP_RULE, Rule, Ruleset, parse_rule
from tunnel_servlet.access.sso import SSO_PREFIX, Members
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo

__all__ = [
    "EXIT_USER",
    "OPEN_USER",
    "Grant",
    "GrantTable",
    "PublicAddress",
    "is_of_provider",
    "parse_public_address",
    "user_table",
]

EXIT_USER = "relay:exit"  # the inline exit; the name of a configured user cannot contain a colon
OPEN_USER = "open"  # every client of a relay that runs with --open
_ANY = "*"
_PORT_MAX = 65535
# Whose rules are kept: "user" and a name, or "groups" and names. A user and a group may have the same name.
_Holder: TypeAlias = tuple[str, ...]
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LINE_LETTERS_MAX = 300  # of a line with the rules that a user already has; a longer one is shortened


class PublicAddress(msgspec.Struct, frozen=True):
    """An address of this machine, and a port there."""

    address: IPAddress
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.address.version == 6 else f"{self.address}:{self.port}"


def parse_public_address(text: str) -> PublicAddress:
    """Parse ADDRESS:PORT. Raise ValueError for anything else: a name could mean another address at each start."""
    host, _, port = text.rpartition(":")
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError(f"{text!r} is not an address: write it as in 0.0.0.0:8443 or [::]:8443") from None
    if (address.version == 6) != host.startswith("[") or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{text!r} is not an address: write it as in 0.0.0.0:8443 or [::]:8443")
    if not 1 <= int(port) <= _PORT_MAX:
        raise ValueError(f"{text!r}: a port is a number from 1 to {_PORT_MAX}")
    return PublicAddress(address, int(port))


class Grant(msgspec.Struct, frozen=True):
    """The permissions of one user."""

    connect: tuple[Rule, ...] = ()  # targets that the user may reach
    services: tuple[str, ...] = ()  # services that the user may connect to; * is any
    listen: tuple[str, ...] = ()  # names under which the user may listen; * is any
    exit: bool = False  # the user's endpoints may be exits, which dial for every user
    public: tuple[PublicAddress, ...] = ()  # ports that the user may open to people without the tunnel
    certificates: tuple[str, ...] = ()  # names in certificates that prove to be this user
    public_hosts: tuple[str, ...] = ()  # host names, at the ports for public HTTP, for people without the tunnel
    rate: int = 0  # bytes per second of all connections of the user, in each direction; 0: no limit
    rates: tuple[tuple[str, int], ...] = ()  # the same for the connections that one rule or service name covers

    @property
    def is_empty(self) -> bool:
        """Whether this grant allows nothing."""
        return not (self.connect or self.services or self.listen or self.exit)


class GrantTable:
    """The grants of all users. `everyone` applies to each user in addition to the user's own grant."""

    def __init__(
        self,
        users: Mapping[str, Grant] | None = None,
        everyone: Grant | None = None,
        *,
        groups: Mapping[str, Grant] | None = None,
        resolvable: Iterable[IPNetwork] = (),
        allows_all: bool = False,
        is_open: bool = False,
    ) -> None:
        self._users = dict(users or {})
        self._everyone = everyone or Grant()
        self._groups = dict(groups or {})
        self.members = Members()  # the relay replaces it by its own
        self._resolvable = tuple(resolvable)
        self._allows_all = allows_all
        self._is_open = is_open
        self._exits = {EXIT_USER, *(user for user, grant in self._users.items() if grant.exit)}
        self._owners: dict[str, list[str]] = {}  # by service name: the users whose own grants list it
        for user, grant in self._users.items():
            for name in grant.listen:
                if name != _ANY and not is_open:
                    self._owners.setdefault(name, []).append(user)
        self.certificates = CertificateTable({user: grant.certificates for user, grant in self._users.items()})
        self._rulesets: dict[_Holder, Ruleset] = {}
        self._rated: dict[_Holder, list[tuple[str, int, Ruleset]]] = {}

    def with_rules(
        self,
        rules: Iterable[Rule],
        *,
        is_open: bool = False,
        allows_services: bool = False,
        allows_all: bool = False,
    ) -> "GrantTable":
        """Return a copy in which these rules hold for every user, too.

        `allows_services`: every user may reach, and listen under, any service name. `allows_all`: the same, and every
        user may reach the targets of `_EVERYTHING`. `is_open`: every client of the relay is the same user.
        """
        everyone = msgspec.structs.replace(self._everyone, connect=(*self._everyone.connect, *rules))
        if allows_services:
            everyone = msgspec.structs.replace(everyone, services=(_ANY,), listen=(_ANY,))
        return GrantTable(
            self._users,
            everyone,
            groups=self._groups,
            resolvable=self._resolvable,
            allows_all=allows_all,
            is_open=is_open,
        )

    def without_groups(self) -> "GrantTable":
        """Return a copy in which only the grants of users and for everyone hold."""
        return GrantTable(
            self._users,
            self._everyone,
            resolvable=self._resolvable,
            allows_all=self._allows_all,
            is_open=self._is_open,
        )

    @property
    def is_empty(self) -> bool:
        """Whether the table allows nothing to any user."""
        grants = (self._everyone, *self._users.values(), *self._groups.values())
        return not self._allows_all and all(grant.is_empty for grant in grants)

    def allows_anything(self, user: str) -> bool:
        """Whether the table allows this user anything."""
        return self._allows_all or not all(grant.is_empty for grant in self._grants(user))

    @property
    def users(self) -> list[str]:
        """The users that have grants of their own."""
        return list(self._users)

    @property
    def groups(self) -> list[str]:
        """The groups that have grants."""
        return list(self._groups)

    @property
    def grants(self) -> dict[str, Grant]:
        """The grants by user; that for everyone has the name ""."""
        return {"": self._everyone, **self._users}

    def rules_of(self, user: str) -> Ruleset:
        """Return the rules for the targets of a user."""
        holder = self._holder(user)
        found = self._rulesets.get(holder)
        if found is None:
            rules = [rule for grant in self._grants(user) for rule in grant.connect]
            resolvable = self._resolvable
            if self._allows_all:
                rules += _EVERYTHING
                resolvable += tuple(rule.network for rule in _EVERYTHING if rule.network is not None)
            found = self._rulesets[holder] = Ruleset(rules, resolvable)
        return found

    def authorise(self, user: str, target: Target) -> Decision:
        """Decide whether the user may reach the target and, if so, whether its CONNECT goes to an exit or to a service
        (3.2)."""
        if target.kind == TargetKind.SERVICE:
            if self._allows(user, "services", target.host):
                return Hand(HandTo.SERVICE, rule=self._naming(user, target.host))
            line = self.line_for(user, "services", target.host)
            return Deny(RejectReason.DENIED, f"no rule allows the service {target.host}; {line}")
        rules = self.rules_of(user)
        ruling = rules.check_target(target.host, target.port)
        if ruling.allowed:
            return Hand(HandTo.EXIT, rule=ruling.rule)
        missing = rules.missing_rule(target.host, target.port)
        line = f"; {self.line_for(user, 'connect', missing)}" if missing else ""
        return Deny(RejectReason.DENIED, ruling.text + line)

    def rates_of(self, user: str, target: Target) -> dict[str, int]:
        """Return the rates of the user's connections to the target, or to the service that the user offers, by rule.

        The empty rule stands for all connections of the user. The user's own rate replaces the one for everyone. A
        rule's rate holds for each connection that the rule allows, even if another rule allows it as well.
        """
        grants = self._grants(user)
        found: dict[str, int] = {}
        for grant in grants:
            if grant.rate:
                found[""] = grant.rate
        if not any(grant.rates for grant in grants):
            return found
        for text, rate, ruleset in self._rated_rules(user):
            if target.kind == TargetKind.SERVICE:
                is_meant = text == target.host
            else:
                is_meant = ruleset.check_target(target.host, target.port).allowed
            if is_meant:
                found[text] = rate
        return found

    def _holder(self, user: str) -> _Holder:
        """Return whose rules a user has. Users without a grant of their own share those for everyone, and users of the
        same groups share theirs, so that they cost no memory."""
        return ("user", user) if user in self._users else ("groups", *self.groups_of(user))

    def groups_of(self, user: str) -> list[str]:
        """Return the groups of a user that have a grant, each once, in an order that depends on their names alone."""
        return sorted({group for group in self.members.groups_of(user) if group in self._groups})

    def has_group(self, group: str) -> bool:
        """Whether the group has a grant."""
        return group in self._groups

    def _rated_rules(self, user: str) -> list[tuple[str, int, Ruleset]]:
        holder = self._holder(user)
        rated = self._rated.get(holder)
        if rated is None:
            grants = self._grants(user)
            rules = {rule.text: rule for grant in grants for rule in grant.connect}
            rates = {text: rate for grant in grants for text, rate in grant.rates}
            rated = [(text, rate, Ruleset([rules[text]] if text in rules else [])) for text, rate in rates.items()]
            self._rated[holder] = rated
        return rated

    def line_for(self, user: str, key: str, value: str) -> str:
        """Return the clause with the line of the configuration, or the option, that would allow what was denied.

        `key`: "connect", "services" or "listen"; `value`: the rule or the name that is missing.
        """
        if self._is_open and key == "connect":
            return f"starting the relay with --allow {value} would allow it"
        groups = self.groups_of(user)
        own = self._groups[groups[0]] if groups else self._users.get(user, Grant())
        own = self._everyone if self._is_open else own
        present = [rule.text for rule in own.connect] if key == "connect" else list(getattr(own, key))
        line = f"{key} = [{', '.join(map(_toml_text, [*present, value]))}]"
        if len(line) > _LINE_LETTERS_MAX:
            line = f"{key} = [..., {_toml_text(value)}]"
        table = user_table(groups[0], "groups") if groups else user_table(user)
        table = "[everyone]" if self._is_open else table
        return f"under {table} in the relay's configuration, this line would allow it: {line}"

    def may_listen(self, user: str, name: str) -> bool:
        """Whether the user may listen under the name (2.8).

        A name that users' own grants list belongs to these users: for it, * and the grant for everyone have no effect.
        """
        owners = self._owners.get(name)
        return user in owners if owners is not None and not self._allows_all else self._allows(user, "listen", name)

    def may_share(self, user: str, name: str) -> bool:
        """Whether the user may listen under the name beside other users, because their own grants list it."""
        return user in self._owners.get(name, ())

    def owners(self, name: str) -> list[str]:
        """Return the users whose own grants list the name."""
        return list(self._owners.get(name, ()))

    @property
    def public_ports(self) -> frozenset[int]:
        """The ports that users may open to people without the tunnel."""
        return frozenset(address.port for grant in self._users.values() for address in grant.public)

    def public_address(self, user: str, place: PublicPlace) -> PublicAddress | None:
        """Return the address at which the user may open this port to people without the tunnel."""
        own = self._users.get(user, Grant())
        return next((found for found in own.public if found.port == place.port), None)

    def why_not_public(self, user: str, place: PublicPlace) -> str:
        """Return why the user may not be reached at this place by people without the tunnel, or an empty string."""
        own = self._users.get(user, Grant())
        if place.host in own.public_hosts if place.host else self.public_address(user, place) is not None:
            return ""
        key, value = ("public_hosts", place.host) if place.host else ("public", f"0.0.0.0:{place.port}")
        present = [*map(str, own.public)] if key == "public" else [*own.public_hosts]
        if is_of_provider(user):
            return "users of the identity provider open nothing to people without the tunnel: use a token of the relay"
        if self._is_open:
            return f"an open relay opens nothing to people without the tunnel: configure a user who may have {place}"
        line = f"{key} = [{', '.join(map(_toml_text, [*present, value]))}]"
        return (
            f"no rule allows the user {place}; under {user_table(user)} in the relay's configuration, this line would "
            f"allow it: {line}"
        )

    def is_exit(self, user: str) -> bool:
        """Whether endpoints of this user may be exits, which dial for every user."""
        return self._everyone.exit or user in self._exits

    @property
    def has_separate_exits(self) -> bool:
        """Whether the endpoints of any user may be exits; the relay's inline exit does not count."""
        return self._everyone.exit or len(self._exits) > 1

    def _allows(self, user: str, what: str, name: str) -> bool:
        return self._allows_all or any(
            name in names or _ANY in names for names in (getattr(grant, what) for grant in self._grants(user))
        )

    def _naming(self, user: str, name: str) -> str:
        """Return the entry that allows the user this service: its name, or *."""
        return name if any(name in grant.services for grant in self._grants(user)) else _ANY

    def _grants(self, user: str) -> list[Grant]:
        own = self._users.get(user)
        if own is None:
            return [self._everyone, *(self._groups[group] for group in self.groups_of(user))]
        return [self._everyone, own]


def is_of_provider(user: str) -> bool:
    """Whether the identity provider names this user, who then has no table in a configuration."""
    return user.startswith(SSO_PREFIX)


def user_table(user: str, above: str = "users") -> str:
    """Return the header of a user's table in the configuration, or of a group's, as TOML wants it."""
    return f"[{above}.{user if _BARE_KEY.fullmatch(user) else _toml_text(user)}]"


def _toml_text(text: str) -> str:
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    letters = (f"\\{one}" if one in '"\\' else one if one.isprintable() else f"\\U{ord(one):08x}" for one in text)
    return f'"{"".join(letters)}"'


# An open relay listens on loopback, so its clients are on its own machine, and the relay may dial what they can reach
# themselves, except link-local, metadata and reserved addresses. Unix sockets are excluded, too: their permission bits
# may keep out other users of the machine, who can reach the relay.
_EVERYTHING = tuple(
    parse_rule(protocol + text)
    for protocol in ("", UDP_RULE)
    for text in "*:* 127.0.0.0/8:* 10.0.0.0/8:* 172.16.0.0/12:* 192.168.0.0/16:* 100.64.0.0/10:* 198.18.0.0/15:* "
    "[::1]:* [fc00::/7]:* srv/*".split()
)
