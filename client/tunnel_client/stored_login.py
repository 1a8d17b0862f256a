"""What is stored of one relay. A module of its own, so that settings need not load msgspec."""

from dataclasses import dataclass
from typing import cast

from tunnel.ground.relay_options import OPTIONS, RelayKeywords, RelayOptions, is_given
from tunnel.ground.relay_urls import is_same_relay
from tunnel_client.stored_sign_in import StoredSignIn

__all__ = ["STORED", "Login"]

STORED = {name: option.default for name, option in OPTIONS.items() if option.is_stored}
"""The options that are stored, and their defaults."""


@dataclass(frozen=True)
class Login(RelayOptions):
    """A relay that commands use unless others are named. Its token must not be sent to any other relay."""

    relay: str
    sign_in: StoredSignIn | None = None

    def is_for(self, url: str) -> bool:
        """Return whether this is the login for the relay at this URL."""
        return is_same_relay(self.relay, url)

    def options(self) -> RelayKeywords:
        """Return the options that the file holds."""
        found = {name: getattr(self, name) for name in STORED}
        given = {name: value for name, value in found.items() if is_given(value) and value != STORED[name]}
        return cast(RelayKeywords, given)
