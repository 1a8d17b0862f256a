"""The relays to use and our credentials there: from arguments, then the environment, then the stored logins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

import tunnel
from tunnel.attaching import AttachKeywords, AttachOptions, attach_with, import_all
from tunnel.ground.relay_lists import pair_tokens, split_files, split_relays, tokens_of
from tunnel.ground.relay_options import OPTIONS, OwnKeywords, RelayKeywords, from_environment, given_of, own_options
from tunnel.ground.relay_urls import relay_key
from tunnel.ground.unused import let_go
from tunnel.system import private_files
from tunnel_client.errors import UsageError
from tunnel_client.stored_login import Login
from tunnel_client.stored_sign_in import StoredSignIn

__all__ = ["FOR_ALL", "RelaySettings", "find_settings", "read_token", "road_memory_path"]

FOR_ALL = ("proxy", "ca", "insecure_http")
"""Of the options that each relay may have for itself, those that hold for all relays if they are given."""


@dataclass(frozen=True, slots=True)
class RelaySettings(AttachOptions):
    """The URL of a relay, our credentials there, and how to reach it."""

    url: str  # of the first relay; `further_relays` has the others
    source: str = ""  # where the URL came from: --relay, TUNNEL_RELAY or tunnel login
    sign_ins: Mapping[str, StoredSignIn] = field(default_factory=dict, repr=False)  # by URL: whose token comes from one

    @property
    def sign_in(self) -> StoredSignIn | None:
        """The sign-in from which the token for the first relay comes."""
        return self.sign_ins.get(self.url)

    def attach(self, **more: Unpack[AttachKeywords]) -> tunnel.Attachment:
        """Create an attachment to the relay without starting it. Raises UsageError if a setting cannot be used."""
        import_all()  # here, so that a setting that cannot be used is found before the attachment is started
        try:
            settings = replace(self, **more)
            if not self.sign_ins:
                return attach_with(self.url, settings)
            from tunnel_client.signed_in import SignedInAttachment  # here: most attachments do not need it

            signed = [(each.url, each, sign_in) for each in settings.each() for sign_in in each.sign_ins.values()]
            return attach_with(self.url, settings, partial(SignedInAttachment, signed, settings))
        except ValueError as error:
            raise UsageError(str(error)) from None

    def each(self) -> list[RelaySettings]:
        """Return the settings for each relay alone."""
        found = [self, *(replace(self.for_another(own_options(own)), url=url) for url, own in self.further_relays)]
        return [
            replace(each, further_relays=(), sign_ins={} if each.sign_in is None else {each.url: each.sign_in})
            for each in found
        ]

    def check(self) -> None:
        """Raise UsageError if no attachment can be made with these settings."""
        let_go(self.attach())


def road_memory_path() -> Path | None:
    """Return the file in which this user's commands remember roads; None if the user has no home directory."""
    try:
        return private_files.cache_directory() / "roads.json"
    except ValueError:
        return None


def find_settings(
    *,
    relay: str | None = None,
    token_file: str | None = None,
    own: Mapping[str, OwnKeywords] | None = None,
    **given: Unpack[RelayKeywords],
) -> RelaySettings:
    """Collect the settings from the arguments, then from the environment, then from the stored logins.

    A proxy stored by the login takes precedence over the proxy variables. `token=None` means no token, `proxy=None` a
    direct connection. `relay` may name several relays, and `token_file` then the file of each. Of the other arguments,
    `proxy`, `ca` and `insecure_http` hold for all relays, and what one relay alone may know for the first; `own` has
    more for some relays, by the form of `relay_key`. Raises UsageError if a setting is missing or wrong, and
    TypeError if one does not exist.
    """
    given, environment = given_of(given), from_environment(os.environ)
    urls, source = _named(relay)
    from tunnel_client.login_file import (  # here: a program that only imports this module need not load msgspec
        known_peers_path,
        login_for,
        read_logins,
    )

    has_token = bool(token_file or environment.get("token"))
    logins = [login_for(url, has_token=has_token) for url in urls] if urls else read_logins()
    if not urls:
        urls, source = [login.relay for login in logins], "tunnel login"
    if not urls:
        raise UsageError("no relay: give --relay URL, set TUNNEL_RELAY, or store one with `tunnel login URL`")
    owned = [(own or {}).get(relay_key(url), {}) for url in urls]
    try:
        logins, has_tokens = _with_tokens(urls, logins, owned, token_file, given, environment)
        found: RelayKeywords = {**logins[0].options(), **environment, **given, **owned[0]}
        _require_choices(found, given)
        sign_ins = {url: login.sign_in for url, login in zip(urls, logins, strict=True) if login.sign_in is not None}
        first = RelaySettings(urls[0], source, sign_ins, known_peers=known_peers_path(), **_directly(found))
        given_to_all = {name: value for name, value in given.items() if name in FOR_ALL}
        further = [
            (url, _own(login, environment, {**given_to_all, **more}, first))
            for url, login, more in list(zip(urls, logins, owned, strict=True))[1:]
        ]
        settings = replace(first, further_relays=tuple(further))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not has_tokens:
        _require_tokens(settings)
    return settings


def _named(relay: str | None) -> tuple[list[str], str]:
    """Return the relays that an argument or the environment names, and which of them does."""
    urls = split_relays(relay or "")
    return (urls, "--relay") if urls else (split_relays(os.environ.get("TUNNEL_RELAY", "")), "TUNNEL_RELAY")


def _with_tokens(
    urls: Sequence[str],
    logins: Sequence[Login],
    owned: Sequence[OwnKeywords],
    token_file: str | None,
    given: RelayKeywords,
    environment: RelayKeywords,
) -> tuple[list[Login], bool]:
    """Return the logins with the tokens that were given in place of the stored ones, and whether they were given for
    all relays together. Take the tokens from `given` and `environment`. Raise ValueError if their number is wrong."""
    is_named, named, text = "token" in given, given.pop("token", None), environment.pop("token", None)
    if is_named:
        tokens = [] if named is None else [named]
    elif token_file:
        tokens = list(map(read_token, map(Path, split_files(token_file))))
    elif text and not any("token" in own for own in owned):
        tokens = _environment_tokens(urls, text)
    else:
        own_tokens = [("token" in own, own.get("token")) for own in owned]
        pairs = zip(logins, own_tokens, strict=True)
        return [replace(one, token=token, sign_in=None) if is_own else one for one, (is_own, token) in pairs], False
    given_tokens = zip(logins, pair_tokens(urls, tokens), strict=True)
    return [replace(login, token=token, sign_in=None) for login, (_, token) in given_tokens], True


def _own(login: Login, environment: RelayKeywords, given: Mapping[str, object], first: RelaySettings) -> OwnKeywords:
    """Return the options of a relay beside the first: those that it would not have without them."""
    names = OwnKeywords.__annotations__
    alone = {name: OPTIONS[name].default for name in FOR_ALL}
    found = {**alone, **login.options(), **{name: one for name, one in environment.items() if name in names}, **given}
    without = first.for_another({})
    own = {name: one for name, one in _directly(found).items() if one != getattr(without, name)}
    return cast(OwnKeywords, own)


def _directly(found: Mapping[str, Any]) -> Any:
    """Return the options with None for the proxy if there must be none."""
    if (found.get("proxy", "env") or "none").lower() == "none":
        return {**found, "proxy": None}
    return found


def _require_tokens(settings: RelaySettings) -> None:
    """Raise UsageError if one of several relays has a token, and another nothing that proves the user."""
    each = settings.each()
    missing = next((one.url for one in each if one.token is None and not one.cert), None)
    if missing is not None and any(one.token for one in each):
        raise UsageError(
            f"there is no token for {missing}: store it with `tunnel login --add {missing}`, or give --token-file for "
            "each relay"
        )


def _environment_tokens(urls: Sequence[str], text: str) -> list[str]:
    """Return the tokens in TUNNEL_TOKEN for these relays. If TUNNEL_RELAY names several, they belong to those, in its
    order, whatever --relay names. Raise UsageError if it has none for one of the relays."""
    owners = split_relays(os.environ.get("TUNNEL_RELAY", ""))
    if len(owners) < 2:
        return text.split() or [""] if len(urls) > 1 else [text]
    try:
        return tokens_of(urls, pair_tokens(owners, text.split()))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _require_choices(found: RelayKeywords, given: RelayKeywords) -> None:
    """Raise UsageError if a setting is not one of its words. It was given, or else comes from its variable."""
    for name, chosen in found.items():
        choices = OPTIONS[name].choices
        if choices and chosen not in choices:
            origin = f"the {name}" if name in given else OPTIONS[name].variable
            raise UsageError(f"{origin} is {chosen!r}: choose one of {', '.join(choices)}")


def read_token(path: Path) -> str:
    """Return the token in a file. Raises UsageError if there is none, or if other users can read the file."""
    try:
        return private_files.read_token(path)
    except ValueError as error:
        raise UsageError(f"--token-file {error}") from None
