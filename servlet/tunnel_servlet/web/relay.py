"""The relay's central object: its switch, tokens and rules, which the HTTP handlers use."""

from typing import Protocol

import msgspec
import structlog

from tunnel.clock import now_us
from tunnel.traces.record import TraceSink
from tunnel.wire import Target, TargetKind
from tunnel_servlet.access.connections import source_of
from tunnel_servlet.access.grants import EXIT_USER, OPEN_USER
from tunnel_servlet.access.tokens import FailureLimiter, Identity, read_bearer
from tunnel_servlet.config import RelayConfig
from tunnel_servlet.switch.decisions import Decision, Deny, PacketFilter
from tunnel_servlet.web.host import SwitchHost

__all__ = ["Relay", "Reloads", "TokenBound"]

_log = structlog.get_logger("relay")


class Reloads(msgspec.Struct):
    """Counts how often the files were read again while the relay ran, and holds the present error."""

    applied: int = 0
    failed: int = 0  # the files could not be used, and the relay went on with its tokens and rules
    error: str = ""  # why the files, as they are now, cannot be used


class TokenBound(Protocol):
    """An object whose life depends on a token: the relay ends it when the token is revoked."""

    identity: Identity

    def end(self, text: str) -> None:
        """End at once. `text` is the reason, for the log."""


class Relay:
    """One relay. `reload` replaces its tokens and rules while it runs; the other settings are fixed at creation."""

    def __init__(
        self, config: RelayConfig, packet_filter: PacketFilter | None = None, trace: TraceSink | None = None
    ) -> None:
        self.config = config
        self.trace = trace
        self.tokens = config.tokens
        self.grants = config.grants
        self.limiter = FailureLimiter(config.limits.auth_failures_per_minute)
        self.reloads = Reloads()
        self.is_draining = False
        self.is_ready = False
        self.host = SwitchHost(
            config.switch,
            self._authorise,
            may_listen=self._may_listen,
            is_exempt=lambda user: self.grants.is_exit(user),
            packet_filter=packet_filter,
            trace=trace,
        )
        self._watched: dict[TokenBound, None] = {}

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
        """Count a wrong token. Return the seconds for which to refuse the address, or 0 to answer it now."""
        if not read_bearer(authorization):
            return 0
        wait_s = self.limiter.failed(source_of(address), now_us())
        if not wait_s:
            _log.warning("wrong_token", address=address)
        return wait_s

    def watch(self, watched: TokenBound) -> None:
        """End `watched` when its token is revoked, until `unwatch` is called."""
        self._watched[watched] = None

    def unwatch(self, watched: TokenBound) -> None:
        """Stop watching an object that has ended."""
        self._watched.pop(watched, None)

    def reload(self, config: RelayConfig) -> None:
        """Use the tokens and rules of `config` from now on, and end the links of revoked tokens."""
        self.tokens = config.tokens
        self.grants = config.grants
        for watched in list(self._watched):
            if not self.is_live(watched.identity):
                watched.end("the token was revoked")
        _log.info("reloaded", tokens=len(self.tokens), users=len(self.grants.users))

    # --- decisions for the switch

    def _authorise(self, user: str, target: Target) -> Decision:
        decision = self.grants.authorise(user, target)
        text = decision.text if isinstance(decision, Deny) else ""
        port = f":{target.port}" if target.kind == TargetKind.TCP else ""
        _log.info("connect", user=user, target=f"{target.host}{port}", allowed=not text, text=text)
        return decision

    def _may_listen(self, user: str, name: str) -> bool:
        allowed = user != EXIT_USER and self.grants.may_listen(user, name)
        text = "" if allowed else f"no rule allows this name; {self.grants.line_for(user, 'listen', name)}"
        _log.info("listen", user=user, service=name, allowed=allowed, text=text)
        return allowed

    # --- lifetime

    def drain(self) -> None:
        """Refuse new connections from now on; existing ones continue."""
        if not self.is_draining:
            self.is_draining = True
            self.host.switch.drain()
            _log.info("draining", routes=self.host.switch.stats().routes)
