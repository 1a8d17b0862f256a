"""The secrets of the requests to a relay, and their replacement while an attachment uses them."""

from collections.abc import Callable

import msgspec

from tunnel.carriers.dialing.challenges import Introduction

__all__ = ["DialSecrets", "SecretsInUse"]

_PROXY_AUTH_REQUIRED = 407
_ACCEPTED = (101, 200)
_UNKNOWN = 404  # the relay's answer (7.10) if it does not know the attachment, or if that belongs to another user
# 7.10: statuses with which a gateway or a proxy answers to wrong secrets. A login page may have the status 200.
_REFUSALS = frozenset({200, 301, 302, 303, 307, 308, 401, 403, _PROXY_AUTH_REQUIRED})


class DialSecrets(msgspec.Struct, frozen=True):
    """What one request sends: all of its `headers`, those for the gateway alone, and how to answer a proxy."""

    headers: dict[str, str]
    gateway_headers: dict[str, str]
    introduction: Introduction | None

    def __repr__(self) -> str:
        return f"DialSecrets({', '.join(self.headers)})"


class SecretsInUse:
    """The secrets in use, and others to try when these are refused.

    New secrets are used at once. If they are refused, the previous ones are used again, because they may still be
    valid. If these are refused as well, the new ones get another try: a gateway may need some time to accept them.
    """

    def __init__(self, secrets: DialSecrets) -> None:
        self.now = secrets
        self._newest = secrets
        self._other: DialSecrets | None = None
        self._is_other_refused = False  # `_other` was refused since `now` was last used with success
        self._is_other_unknown = False  # the relay did not know the attachment of a request with the newest secrets
        self._tell: Callable[[int], None] | None = None  # called when the newest secrets are refused

    def renew(self, secrets: DialSecrets, refused: Callable[[int], None]) -> None:
        """Use these secrets from the next request on. If they are refused, call `refused` once with the HTTP status."""
        if self._other is None or self.now is not self._newest:
            self._other = self.now  # otherwise, `now` was never accepted: keep the older ones
        self.now = self._newest = secrets
        self._is_other_refused = self._is_other_unknown = False
        self._tell = refused

    def on_answered(self, sent: DialSecrets, status: int, *, by_relay: bool = False) -> bool:
        """Learn from the answer to a request with the secrets `sent`. Return whether to repeat it with other ones."""
        if by_relay and status in _ACCEPTED:
            self._accepted(sent)
            return False
        other = self._other
        if status not in _REFUSALS and not (by_relay and status == _UNKNOWN and other is not None):
            return False
        if sent is not self.now:
            return True
        if other is None:
            return False
        is_newest = sent is self._newest
        if by_relay and status == _UNKNOWN:
            return self._unknown(other, is_newest=is_newest)
        if self._is_other_refused:
            self._is_other_refused = False  # the next refusal tries the other ones again
            return False
        # A proxy may lock the account of a user whose wrong password comes again.
        self._other = None if is_newest and status == _PROXY_AUTH_REQUIRED else sent
        self.now, self._is_other_refused, self._is_other_unknown = other, True, False
        if is_newest:
            self._say(status)
        return True

    def _unknown(self, other: DialSecrets, *, is_newest: bool) -> bool:
        """Find out why the relay does not know the attachment: it belongs to another user, or the relay has restarted.

        Return whether to repeat the request with the other secrets. Otherwise, the endpoint attaches again.
        """
        if is_newest and not self._is_other_refused:
            self.now, self._other, self._is_other_unknown = other, self._newest, True
            return True
        if self._is_other_unknown:  # unknown with both secrets: the relay has restarted
            self.now, self._other, self._is_other_unknown = self._newest, self.now, False
        return False

    def _say(self, status: int) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(status)

    def _accepted(self, sent: DialSecrets) -> None:
        if sent is self.now:
            self._is_other_refused = False
            if sent is self._newest:
                self._other, self._tell = None, None
            elif self._is_other_unknown:
                self._is_other_unknown = False
                self._say(_UNKNOWN)
