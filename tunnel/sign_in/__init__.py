"""The sign-in of a person at an identity provider, for a relay that believes its tokens (OpenID Connect, RFC 8628)."""

__all__: list[str] = []
