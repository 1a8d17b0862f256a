"""What is stored of a sign-in at an identity provider. A module of its own, so that settings need not load msgspec."""

from dataclasses import dataclass

__all__ = ["StoredSignIn"]


@dataclass(frozen=True, slots=True)
class StoredSignIn:
    """The sign-in at an identity provider from which the token comes. The provider, and no other, renews it.

    The times are seconds since the epoch by this machine's clock.
    """

    issuer: str
    client_id: str
    audience: str
    scope: str
    token_endpoint: str
    refresh_token: str
    renew_s: int  # the time at which to get the next token
    expires_s: int

    def __repr__(self) -> str:
        return f"StoredSignIn(issuer={self.issuer!r})"
