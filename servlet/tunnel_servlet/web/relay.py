"""The relay's central object: its switch, tokens and rules, which the HTTP handlers use."""

import hmac
import time
from collections.abc import Callable, Iterator

import msgspec
import structlog

from tunnel.system.clock import now_us
from tunnel.traces.record import TraceSink
from tunnel.wire import StatusCode, Target, TargetKind
from tunnel_servlet.access.grants import EXIT_USER, OPEN_USER, is_of_provider
from tunnel_servlet.access.instants import show_instant
from tunnel_servlet.access.rules import Ruleset
from tunnel_servlet.access.sources import source_of
from tunnel_servlet.access.sso import LEEWAY_S, Members, SsoError
from tunnel_servlet.access.tokens import FailureLimiter, Identity, read_bearer, token_digest
from tunnel_servlet.config import RelayConfig
from tunnel_servlet.exit.dialer import Dialer
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo, PacketFilter, SeparateExits
from tunnel_servlet.switch.inline_id import owner_in
from tunnel_servlet.switch.model import ANY_TOKEN, Credential
from tunnel_servlet.switch.operating.rows import shown_target
from tunnel_servlet.web.auditing import RelayAudit
from tunnel_servlet.web.host import SwitchHost
from tunnel_servlet.web.live.denials import Denials
from tunnel_servlet.web.parts import Parts
from tunnel_servlet.web.public.ports import PublicPorts
from tunnel_servlet.web.reloading import Reloads
from tunnel_servlet.web.tokens.certificates import Certificates, CertificateUsers
from tunnel_servlet.web.tokens.files import write_instant
from tunnel_servlet.web.tokens.provider import IdentityProvider
from tunnel_servlet.web.tokens.uses import TokenUses
from tunnel_servlet.web.tokens.watch import LOOK_S, TokenBound, TokenWatch

__all__ = ["Relay"]

# Settings whose changes a running relay does not apply.
_AT_START = ("listen", "base", "admin", "exit", "proxies", "sso", "public_http", "trace", "audit", "switch", "limits")

_log = structlog.get_logger("relay")
_NOT_PUBLIC = "people without the tunnel may not reach the service any more"
_NO_RULES = Ruleset(())
_GROUPS_LETTERS_MAX = 300  # of a user's groups that a refusal lists


def _shown(time_s: int) -> str:
    """Return a time for people."""
    return show_instant(write_instant(time_s))


class AuthenticationFailures(msgspec.Struct):
    """Requests without a valid token, since the start."""

    missing: int = 0  # no token came
    wrong: int = 0
    limited: int = 0  # wrong ones of an address beyond the limit
    expired: int = 0
    certificates: int = 0  # a certificate that belongs to no user, or not to this request
    used: int = 0  # one for a single use, which another endpoint has used


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

    def on_last_left(self) -> None:
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
    """One relay. `reload` replaces its tokens, rules and admin secret while it runs; all else is fixed at creation.

    One thing because each method answers a question of the handlers or of the switch by the tokens and rules of the
    moment, which change together.
    """

    def __init__(
        self, config: RelayConfig, packet_filter: PacketFilter | None = None, trace: TraceSink | None = None
    ) -> None:
        self.config = config
        self.trace = trace
        self.audit = RelayAudit()  # has no trail without [audit]
        self.tokens = config.tokens
        self.admin_secret = config.admin_secret
        self.grants = config.grants
        self.limiter = FailureLimiter(config.limits.auth_failures_per_minute)
        self.reloads = Reloads()
        self.failures = AuthenticationFailures()
        self.denials = Denials()
        self.refusals: dict[StatusCode, int] = {}  # requests that were refused before they reached the switch
        self.dialer: Dialer | None = None  # of the inline exit, if there is one
        self.roleless: set[str] = set()  # users that may be exits, whose endpoint without a role the log has reported
        self.is_draining = False
        self.is_ready = False
        self.public_ports = PublicPorts(
            config.limits,
            lambda: self.grants,
            lambda: self.host,
            joined=self.audit.note_stranger,
            proxies=config.proxies,
        )
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
            witness=None if config.audit is None else self.audit,
        )
        self.clock: Callable[[], float] = time.time
        """Returns the seconds since the epoch, by which tokens expire."""
        self.uses = TokenUses(
            config.token_use,
            lambda key_id: self.tokens.key(key_id),
            lambda: self.clock(),
            lambda: self._watch.identities,
        )
        self.certificates = Certificates()
        self.provider = None if config.sso is None else IdentityProvider(config.sso, lambda: self.clock())
        self._certified = CertificateUsers()
        self._members = self.grants.members = Members()
        self._watch = TokenWatch(self.why_ended, self._next_expiry_s, self._look_for_expired)
        self._expired = set(self.tokens.expired_ids(self.clock()))
        self._when_changed: list[Callable[[], Iterator[None]]] = []
        self._review = Parts()
        self._ending = Parts()
        self._draining = Parts()

    # --- users and tokens

    def identify(self, authorization: str | None) -> Identity | None:
        """Return the user and key id that an Authorization header proves, or None if there is no such token. Ask
        `why_ended` whether the token may still be used."""
        if self.config.is_open:
            return Identity(OPEN_USER)
        return self.tokens.identify(read_bearer(authorization))

    async def identify_member(self, token: str) -> Identity:
        """Return the user of an identity provider's token. Raise SsoError if it is refused, and ProviderError if it
        cannot be checked now."""
        if self.provider is None:
            raise SsoError("the relay knows no identity provider")
        member = await self.provider.identify(token)
        if not any(map(self.grants.has_group, member.groups)):
            groups = ", ".join(member.groups)[:_GROUPS_LETTERS_MAX] or "none"
            raise SsoError(f"the rules name none of the groups of the user: {groups}; ask the operator")
        if self._members.join(member, self.clock()):
            self._review.start(self._reviewed("reviewed"))
        return Identity(member.user, f"sso-{token_digest(token)[:16]}", expires_s=member.expires_s)

    def why_ended(self, identity: Identity) -> str:
        """Return why the token of this identity is not valid any more, for its user; an empty text if it is valid."""
        if self.config.is_open:
            return ""
        if identity.names:
            return self._why_certificate_ended(identity)
        if is_of_provider(identity.user):
            return self._why_member_ended(identity)
        return self.tokens.why_ended(identity, self.clock())

    def _why_member_ended(self, identity: Identity) -> str:
        if identity.expires_s + LEEWAY_S <= self.clock():
            return f"the token expired on {_shown(identity.expires_s)}: get a new one of the identity provider"
        if not self.grants.groups_of(identity.user):
            return "the rules name none of the groups of the user any more; ask the operator"
        return ""

    def _why_certificate_ended(self, identity: Identity) -> str:
        if self.grants.certificates.users_of(identity.names) != [identity.user]:
            return "the rules do not give the certificate to this user any more; ask the operator"
        if identity.expires_s > self.clock():
            return ""
        return f"the certificate expired on {_shown(identity.expires_s)}; ask the operator for a new one"

    def note_use(self, identity: Identity) -> None:
        """Note that this token or certificate, which is valid, is used now."""
        self.uses.note(identity)
        if identity.names:
            self._certified.add(identity)

    def may_link(self, identity: Identity, endpoint: bytes) -> bool:
        """Whether the token may serve a link of this endpoint."""
        return self.uses.may_link(identity, endpoint)

    def credential(self, identity: Identity) -> Credential:
        """Return what the switch must know of the token of this identity."""
        key = self.tokens.key(identity.key_id)
        return Credential(key.id, key.endpoints_max) if key is not None and key.endpoints_max else ANY_TOKEN

    def count_rejection(
        self, authorization: str | None, address: str, proxy: str = "", *, reason: str = "wrong", text: str = ""
    ) -> int:
        """Count a wrong token, if one came. Return the seconds for which to refuse the address; 0: answer it now.

        `proxy` is the address of the trusted proxy that has named `address`, if one has; `reason` and `text` are for
        the audit.
        """
        if not read_bearer(authorization):
            self.failures.missing += 1
            return 0
        wait_s = self.limiter.count_failure(source_of(address), now_us())
        if wait_s:
            self.failures.limited += 1
        else:
            self.failures.wrong += 1
            _log.warning("wrong_token", address=address)
        source, forwarded = (proxy, address) if proxy else (address, "")
        self.audit.note_refused_token(source, "limited" if wait_s else reason, forwarded, text=text)
        return wait_s

    def is_operator(self, secret: str) -> bool:
        """Whether this is the admin secret of the tokens file. If the file has none, no secret is right."""
        own = self.admin_secret.encode()
        return bool(own) and hmac.compare_digest(own, secret.encode(errors="surrogateescape"))

    def watch(self, watched: TokenBound) -> None:
        """From now on until `unwatch` is called, end `watched` as soon as its token expires or is revoked."""
        self._watch.add(watched)

    def unwatch(self, watched: TokenBound) -> None:
        """Stop watching an object that has ended."""
        self._watch.remove(watched)

    @property
    def token_bound(self) -> list[TokenBound]:
        """The objects that depend on a token at present."""
        return self._watch.objects

    def when_changed(self, act: Callable[[], Iterator[None]]) -> None:
        """Run the steps of `act` whenever tokens or rules have been replaced."""
        self._when_changed.append(act)

    def reload(self, config: RelayConfig) -> None:
        """Use the tokens and rules of `config` from now on, and end whatever they no longer allow.

        If there is much to end, that goes on after this method has returned.
        """
        self.audit.note_changes((self.tokens, self.grants), (config.tokens, config.grants))
        self.tokens = config.tokens
        self.admin_secret = config.admin_secret
        self.grants = config.grants
        self.grants.members = self._members
        later = [name for name in _AT_START if getattr(config, name) != getattr(self.config, name)]
        if (config.tls is None) != (self.config.tls is None):
            later.append("tls")
        if later:
            _log.warning("at_next_start", text=f"changes of {', '.join(later)} take effect when the relay starts again")
        self.uses.forget_others()
        self._expire()
        self._watch.look()
        self._review.start(self._reviewed("reloaded"))

    def _next_expiry_s(self) -> float:
        now_s = self.clock()
        next_s = self.tokens.next_expiry_s(now_s) - now_s
        # The dates of certificates and of an identity provider's tokens are not in the rules: look at those that are in
        # use from time to time.
        looks = self.grants.certificates or self.provider is not None
        return min(next_s, LOOK_S) if looks and next_s > 0 else next_s

    def _look_for_expired(self) -> None:
        fresh = self._expire()
        # Besides the review: one that has not ended must go on, although nothing has expired since.
        self._ending.start(self._watch.end_invalid())
        gone = self._members.drop_expired(self.clock()) + self._certified.drop_expired(self.clock())
        for user in gone:
            self.audit.note_expired(user)
        if fresh or gone:
            _log.info("tokens_expired", keys=fresh, users=gone)
            self._review.start(self._reviewed("reviewed"))

    def _expire(self) -> list[str]:
        """Note the tokens that have expired since this was called last, and return their key ids."""
        expired = set(self.tokens.expired_ids(self.clock()))
        fresh = sorted(expired - self._expired)
        self._expired = expired
        keys = self.tokens.keys if fresh else {}
        for key_id in fresh:
            self.audit.note_expired(keys[key_id][0], key_id)
        return fresh

    def _reviewed(self, event: str) -> Iterator[None]:
        # All of it each time: a review that begins replaces one that has not ended.
        yield from self._watch.end_invalid()
        yield from self._certified.drop_invalid(self.why_ended)
        count = 0
        for ended in self.host.review(self):
            if ended is not None:
                count += 1
                _log.info("ended", user=ended.user, kind=ended.kind, target=ended.name, text=ended.text)
            yield
        for act in self._when_changed:
            yield from act()
        _log.info(event, tokens=len(self.tokens), users=len(self.grants.users), ended=count)

    # --- rules

    def has_user(self, user: str) -> bool:
        """Whether the user has a valid token, or has shown a valid certificate, or needs neither."""
        return (
            self.config.is_open
            or user == EXIT_USER
            or self.tokens.has_user(user, self.clock())
            or self._certified.is_present(user, self.clock())
            or (self._members.is_present(user, self.clock()) and bool(self.grants.groups_of(user)))
        )

    def is_exit(self, user: str) -> bool:
        """Whether endpoints of this user may be exits."""
        return self.grants.is_exit(user)

    def authorise(self, user: str, target: Target) -> Decision:
        """Decide whether the user may reach the target. Strangers (see inline_id.py) reach only what is public."""
        owner = owner_in(user)
        if owner:
            is_public = target.kind == TargetKind.SERVICE and self.public_ports.is_public(owner, target.host)
            return Hand(HandTo.SERVICE, rule="public") if is_public else Deny(text=_NOT_PUBLIC)
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
        if text and event == "connect":
            self.denials.add(user, shown_target(target), text)
        _log.info(event, user=user, target=shown_target(target), allowed=not text, text=text)
        return decision

    def _may_listen(self, user: str, name: str) -> bool:
        allowed = self.may_listen(user, name)
        owners = ", ".join(self.grants.owners(name))
        why = f"the rules give this name to {owners}" if owners else "no rule allows this name"
        text = "" if allowed else f"{why}; {self.grants.line_for(user, 'listen', name)}"
        if text:
            self.denials.add(user, f"listen {name}", text)
        _log.info("listen", user=user, service=name, allowed=allowed, text=text)
        return allowed

    # --- lifetime

    def start(self) -> None:
        """Begin to look for tokens that expire, and to store when tokens are used."""
        self.uses.start(self.tokens.keys)
        self._watch.look()

    async def close(self) -> None:
        """Stop, and store when tokens were used."""
        self._watch.close()
        if self.provider is not None:
            await self.provider.close()
        await self.uses.close()

    def drain(self) -> None:
        """Refuse new connections and attachments from now on, and tell the present ones; connections continue."""
        if not self.is_draining:
            self.is_draining = True
            self._draining.start(self.host.drain())
            _log.info("draining", routes=self.host.switch.stats().routes_open)
