"""Who may do what: the relay's answers to its switch, and the exit's rules. Default: nothing."""

from collections.abc import Iterable, Mapping

import msgspec

from tunnel.wire import RejectReason, Target, TargetKind
from tunnel_servlet.access.addresses import IPNetwork
from tunnel_servlet.access.rules import UDP_RULE, Rule, Ruleset, parse_rule
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo

__all__ = ["EXIT_USER", "OPEN_USER", "Grant", "GrantTable"]

EXIT_USER = "relay:exit"  # the inline exit; no configured user can have a colon in the name
OPEN_USER = "open"  # everybody, when the relay is open
_ANY = "*"


class Grant(msgspec.Struct, frozen=True):
    """What a user may do."""

    connect: tuple[Rule, ...] = ()  # TCP targets
    services: tuple[str, ...] = ()  # that may be connected to; * is any
    listen: tuple[str, ...] = ()  # names that may be listened under; * is any
    exit: bool = False  # what attaches in this name is an exit: it dials for everybody

    @property
    def is_empty(self) -> bool:
        """Whether it allows nothing."""
        return not (self.connect or self.services or self.listen or self.exit)


class GrantTable:
    """All grants. `everyone` holds for each user besides the user's own."""

    def __init__(
        self,
        users: Mapping[str, Grant] | None = None,
        everyone: Grant | None = None,
        *,
        resolvable: Iterable[IPNetwork] = (),
        allows_all: bool = False,
    ) -> None:
        self._users = dict(users or {})
        self._everyone = everyone or Grant()
        self._resolvable = tuple(resolvable)
        self._allows_all = allows_all
        self._rulesets: dict[str, Ruleset] = {}

    def widened(self, rules: Iterable[Rule], *, allows_all: bool = False) -> "GrantTable":
        """The same with more rules for everyone, or without any."""
        everyone = msgspec.structs.replace(self._everyone, connect=(*self._everyone.connect, *rules))
        return GrantTable(self._users, everyone, resolvable=self._resolvable, allows_all=allows_all)

    @property
    def is_empty(self) -> bool:
        """Whether nobody may do anything."""
        grants = (self._everyone, *self._users.values())
        return not self._allows_all and all(grant.is_empty for grant in grants)

    @property
    def users(self) -> list[str]:
        """Those with grants of their own."""
        return list(self._users)

    def rules_of(self, user: str) -> Ruleset:
        """The TCP targets of a user."""
        name = user if user in self._users else ""  # strangers share one, so that they cost nothing
        found = self._rulesets.get(name)
        if found is None:
            rules = [rule for grant in self._grants(user) for rule in grant.connect]
            resolvable = self._resolvable
            if self._allows_all:
                rules += _EVERYTHING
                resolvable += tuple(rule.network for rule in _EVERYTHING if rule.network is not None)
            found = self._rulesets[name] = Ruleset(rules, resolvable)
        return found

    def authorise(self, user: str, target: Target) -> Decision:
        """Whether the user may reach the target, and who takes it there (3.2)."""
        if target.kind == TargetKind.SERVICE:
            if self._allows(user, "services", target.host):
                return Hand(HandTo.SERVICE)
            return Deny(RejectReason.DENIED, f"no rule allows the service {target.host}")
        verdict = self.rules_of(user).check_target(target.host, target.port)
        return Hand(HandTo.EXIT) if verdict.allowed else Deny(RejectReason.DENIED, verdict.text)

    def may_listen(self, user: str, name: str) -> bool:
        """Whether the user may listen under the name (2.8)."""
        return self._allows(user, "listen", name)

    def is_exit(self, user: str) -> bool:
        """Whether what attaches in this name dials for everybody."""
        return user == EXIT_USER or any(grant.exit for grant in self._grants(user))

    def _allows(self, user: str, what: str, name: str) -> bool:
        return self._allows_all or any(
            name in names or _ANY in names for names in (getattr(grant, what) for grant in self._grants(user))
        )

    def _grants(self, user: str) -> list[Grant]:
        own = self._users.get(user)
        return [self._everyone] if own is None else [self._everyone, own]


# An open relay is reached from its own machine alone: it may go wherever that machine may.
_EVERYTHING = tuple(
    parse_rule(protocol + text)
    for protocol in ("", UDP_RULE)
    for text in "*:* 127.0.0.0/8:* 10.0.0.0/8:* 172.16.0.0/12:* 192.168.0.0/16:* 100.64.0.0/10:* 198.18.0.0/15:* "
    "[::1]:* [fc00::/7]:*".split()
)
