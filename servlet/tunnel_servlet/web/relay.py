"""The relay's central object: its switch, tokens and rules, which the HTTP handlers use."""

import hmac
from collections.abc import Callable, Iterator
from typing import Protocol

import structlog

from tunnel.clock import now_us
from tunnel.special_targets import target_text
from tunnel.traces.record import TraceSink
from tunnel.wire import Target, TargetKind
from tunnel_servlet.access.grants import EXIT_USER, OPEN_USER
from tunnel_servlet.access.rules import Ruleset
from tunnel_servlet.access.sources import source_of
from tunnel_servlet.access.tokens import FailureLimiter, Identity, read_bearer
from tunnel_servlet.config import RelayConfig
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo, PacketFilter, SeparateExits
from tunnel_servlet.switch.inline_id import owner_in
from tunnel_servlet.web.host import SwitchHost
from tunnel_servlet.web.parts import Parts
from tunnel_servlet.web.public_ports import PublicPorts
from tunnel_servlet.web.reloading import Reloads

__all__ = ["REVOKED", "Relay", "TokenBound"]

REVOKED = "the token was revoked"
# Settings whose changes a running relay does not apply.
_AT_START = ("listen", "base", "admin", "exit", "tls", "public_http", "trace", "switch", "limits")

_log = structlog.get_logger("relay")
_NOT_PUBLIC = "people without the tunnel may not reach the service any more"
_NO_RULES = Ruleset(())


class TokenBound(Protocol):
    """An object whose life depends on a token: the relay ends it when the token is revoked."""

    identity: Identity

    def end(self, text: str) -> None:
        """End at once. `text` is the reason, for people."""


class _LoggedExits(SeparateExits):
    """Logs which exits dial: those in processes of their own, or the inline one."""

    def __init__(self, may_come: Callable[[], bool]) -> None:
        self._may_come = may_come

    def may_come(self) -> bool:
        return self._may_come()

    def took_over(self, user: str, name: str) -> None:
        text = (
            "this exit and others like it get all new connections to targets; the inline exit gets none while one of "
            'them is attached. Write exit = "none" in the configuration to do without the inline exit'
        )
        _log.info("separate_exit", user=user, name=name, text=text)

    def left(self) -> None:
        text = (
            "the last exit in a process of its own has left, or the relay has forgotten it: the inline exit, which "
            'does not encrypt, dials targets again. Start `tunnel-relay exit`, or write exit = "none" to refuse '
            "connections instead"
        )
        _log.warning("inline_exit", text=text)

    def silent(self, user: str, name: str) -> None:
        text = (
            "nothing has come from this exit since it was given a connection: until something comes, other exits get "
            "all new connections; if there is no other, the inline exit gets those that this one would not encrypt, "
            "and the others wait. See whether the exit runs, and whether it reaches the relay"
        )
        _log.warning("exit_silent", user=user, name=name, text=text)


class Relay:
    """One relay. `reload` replaces its tokens, rules and admin secret while it runs; all else is fixed at creation."""

    def __init__(
        self, config: RelayConfig, packet_filter: PacketFilter | None = None, trace: TraceSink | None = None
    ) -> None:
        self.config = config
        self.trace = trace
        self.tokens = config.tokens
        self.admin_secret = config.admin_secret
        self.grants = config.grants
        self.limiter = FailureLimiter(config.limits.auth_failures_per_minute)
        self.reloads = Reloads()
        self.roleless: set[str] = set()  # users that may be exits, whose endpoint without a role the log has reported
        self.is_draining = False
        self.is_ready = False
        self.public_ports = PublicPorts(config.limits, lambda: self.grants, lambda: self.host)
        self.host = SwitchHost(
            config.switch,
            self._authorise,
            answer=self._answer,
            may_listen=self._may_listen,
            publisher=self.public_ports,
            may_share=lambda user, name: self.grants.may_share(user, name),
            rates_of=lambda user, target: self.grants.rates_of(user, target),
            separate_exits=_LoggedExits(lambda: self.grants.has_separate_exits),
            is_exempt=lambda user: self.grants.is_exit(user),
            packet_filter=packet_filter,
            trace=trace,
        )
        self._watched: dict[TokenBound, None] = {}
        self._when_changed: list[Callable[[], Iterator[None]]] = []
        self._review = Parts()

    # --- users and tokens

    def identify(self, authorization: str | None) -> Identity | None:
        """Return the user and key id that an Authorization header proves, or None if its token is not valid."""
        if self.config.is_open:
            return Identity(OPEN_USER)
        return self.tokens.identify(read_bearer(authorization))

    def is_live(self, identity: Identity) -> bool:
        """Whether the token of this identity is still valid."""
        return self.config.is_open or self.tokens.is_live(identity)

    def rejected(self, authorization: str | None, address: str) -> int:
        """Count a wrong token, if one came. Return the seconds for which to refuse the address; 0: answer it now."""
        if not read_bearer(authorization):
            return 0
        wait_s = self.limiter.failed(source_of(address), now_us())
        if not wait_s:
            _log.warning("wrong_token", address=address)
        return wait_s

    def is_operator(self, secret: str) -> bool:
        """Whether this is the admin secret of the tokens file. If the file has none, no secret is right."""
        own = self.admin_secret.encode()
        return bool(own) and hmac.compare_digest(own, secret.encode(errors="surrogateescape"))

    def watch(self, watched: TokenBound) -> None:
        """From now on until `unwatch` is called, end `watched` as soon as its token is revoked."""
        self._watched[watched] = None

    def unwatch(self, watched: TokenBound) -> None:
        """Stop watching an object that has ended."""
        self._watched.pop(watched, None)

    def when_changed(self, act: Callable[[], Iterator[None]]) -> None:
        """Run the steps of `act` whenever tokens or rules have been replaced."""
        self._when_changed.append(act)

    def reload(self, config: RelayConfig) -> None:
        """Use the tokens and rules of `config` from now on, and end whatever they no longer allow.

        If there is much to end, that goes on after this method has returned.
        """
        self.tokens = config.tokens
        self.admin_secret = config.admin_secret
        self.grants = config.grants
        later = [name for name in _AT_START if getattr(config, name) != getattr(self.config, name)]
        if later:
            _log.warning("at_next_start", text=f"changes of {', '.join(later)} take effect when the relay starts again")
        for watched in list(self._watched):
            if not self.is_live(watched.identity):
                watched.end(REVOKED)
        self._review.start(self._reviewed())

    def _reviewed(self) -> Iterator[None]:
        count = 0
        for ended in self.host.review(self):
            if ended is not None:
                count += 1
                _log.info("ended", user=ended.user, kind=ended.kind, target=ended.name, text=ended.text)
            yield
        for act in self._when_changed:
            yield from act()
        _log.info("reloaded", tokens=len(self.tokens), users=len(self.grants.users), ended=count)

    # --- rules

    def has_user(self, user: str) -> bool:
        """Whether the user has a valid token, or needs none."""
        return self.config.is_open or user == EXIT_USER or self.tokens.has_user(user)

    def is_exit(self, user: str) -> bool:
        """Whether endpoints of this user may be exits."""
        return self.grants.is_exit(user)

    def authorise(self, user: str, target: Target) -> Decision:
        """Decide whether the user may reach the target. Strangers (see inline_id.py) reach only what is public."""
        owner = owner_in(user)
        if owner:
            is_public = target.kind == TargetKind.SERVICE and self.public_ports.is_public(owner, target.host)
            return Hand(HandTo.SERVICE) if is_public else Deny(text=_NOT_PUBLIC)
        return self.grants.authorise(user, target)

    def may_listen(self, user: str, name: str) -> bool:
        """Whether the user may listen under the name."""
        return user != EXIT_USER and self.grants.may_listen(user, name)

    def rules_of(self, user: str) -> Ruleset:
        """Return the rules for what the inline exit dials for a user; a user without a token may reach nothing."""
        return self.grants.rules_of(user) if self.has_user(user) else _NO_RULES

    # --- decisions for the switch, which are logged

    def _authorise(self, user: str, target: Target) -> Decision:
        return self._logged("connect", user, target)

    def _answer(self, user: str, target: Target) -> Decision:
        return self._logged("asked", user, target)

    def _logged(self, event: str, user: str, target: Target) -> Decision:
        decision = self.authorise(user, target)
        text = decision.text if isinstance(decision, Deny) else ""
        label = target_text(target.host, target.port if target.kind == TargetKind.TCP else None)
        _log.info(event, user=user, target=label, allowed=not text, text=text)
        return decision

    def _may_listen(self, user: str, name: str) -> bool:
        allowed = self.may_listen(user, name)
        owners = ", ".join(self.grants.owners(name))
        why = f"the rules give this name to {owners}" if owners else "no rule allows this name"
        text = "" if allowed else f"{why}; {self.grants.line_for(user, 'listen', name)}"
        _log.info("listen", user=user, service=name, allowed=allowed, text=text)
        return allowed

    # --- lifetime

    def drain(self) -> None:
        """Refuse new connections from now on; existing ones continue."""
        if not self.is_draining:
            self.is_draining = True
            self.host.switch.drain()
            _log.info("draining", routes=self.host.switch.stats().routes)
