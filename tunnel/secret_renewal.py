"""The replacement of the secrets of an attachment while it is in use."""

from collections.abc import Callable, Mapping
from typing import Protocol

__all__ = ["Renew", "RenewableSecrets"]


class Renew(Protocol):
    """Passes new secrets on to the carrier of an attachment."""

    def __call__(
        self, token: str | None, headers: Mapping[str, str], proxy: str | None, refused: Callable[[int], None]
    ) -> None: ...


class RenewableSecrets:
    """The part of an attachment that replaces its secrets."""

    _renew: Renew | None = None

    def renew_by(self, renew: Renew) -> None:
        """Let `renew` pass new secrets on."""
        self._renew = renew

    def renew_secrets(
        self,
        *,
        token: str | None,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = "env",
        refused: Callable[[int], None] = lambda status: None,
    ) -> None:
        """Use these secrets from the next request on. The connections go on.

        The arguments are as in `attach`: a token of the same user, headers of the same names, another user and password
        at the same proxy. If the new secrets are refused, the previous ones stay in use as long as they are accepted,
        and `refused` is called with the HTTP status. It is 404 if the token belongs to another user, who needs an
        attachment of their own. Raise ValueError, with advice, if a secret is invalid, and change nothing.
        """
        if self._renew is None:
            raise RuntimeError("an attachment in memory has no secrets: make another attachment")
        self._renew(token, headers or {}, proxy, refused)
