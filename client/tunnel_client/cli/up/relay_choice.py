"""Chooses the relay and the user of `tunnel up`: from options, the file, the environment, the login, in this order."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import tunnel
from tunnel import ProxyPasswordError
from tunnel.ground.relay_lists import split_relays
from tunnel.ground.relay_options import OwnKeywords, RelayKeywords, given_by, own_options
from tunnel.ground.relay_urls import relay_key
from tunnel.process.gateway_options import parse_headers, read_proxy_file
from tunnel_client.cli.options import given
from tunnel_client.cli.service_key import with_service_key
from tunnel_client.cli.up.declaration import OwnPart
from tunnel_client.cli.up.file import ReadFile
from tunnel_client.errors import UsageError
from tunnel_client.settings import FOR_ALL, RelaySettings, find_settings, read_token

__all__ = ["chosen_settings", "is_refused_again", "is_same_path"]


def chosen_settings(
    read: ReadFile, arguments: argparse.Namespace, trace: tunnel.TraceWriter | None = None
) -> RelaySettings:
    """Return the settings. Raises UsageError if one is missing or wrong, or if a file with a secret is not private."""
    part = read.relay
    found = _of_several(read, arguments) if part.further else _of_one(read, arguments)
    found = replace(found, rate=arguments.rate or part.rate, trace=trace, same_users=part.same_users)
    offers_services = any(entry.kind == "expose" for entry in read.entries.values())
    return with_service_key(found, part.key) if offers_services else found


def _of_one(read: ReadFile, arguments: argparse.Namespace) -> RelaySettings:
    """Return the settings with the table [relay], whose settings hold for the first relay that an option names, too."""
    part = read.relay
    options: RelayKeywords = {**given_by(part), **given(arguments)}
    if part.proxy_file and "proxy" not in options:
        options["proxy"] = _proxy(part.proxy_file)
    if part.header_file and not options.get("headers"):
        options["headers"] = _headers(part.header_file)
    token_file = arguments.token_file or part.token_file
    return find_settings(relay=arguments.relay or part.url, token_file=token_file, **options)


def _of_several(read: ReadFile, arguments: argparse.Namespace) -> RelaySettings:
    """Return the settings with the tables of several relays: what one of them says holds for its URL alone."""
    part, line = read.relay, given(arguments)
    tables = {relay_key(one.url): one for one in (part, *part.further)}
    urls = split_relays(arguments.relay) or [one.url for one in tables.values()]
    for_all = [name for name in line if name in FOR_ALL]
    own: dict[str, OwnKeywords] = {}
    for place, url in enumerate(map(relay_key, urls)):
        if url in tables:
            overridden = ["token"] * bool(arguments.token_file) + (list(line) if place == 0 else for_all)
            own[url] = _own(tables[url], overridden)
    common = {name: value for name, value in given_by(part).items() if name not in OwnKeywords.__annotations__}
    common |= {name: value for name, value in _own(part, ["token", "headers", *for_all]).items() if name in FOR_ALL}
    options = cast(RelayKeywords, {**common, **line})
    return find_settings(relay="\n".join(urls), token_file=arguments.token_file, own=own, **options)


def _own(part: OwnPart, overridden: Collection[str]) -> OwnKeywords:
    """Return what a table says of its relay, and the secrets in the files that it names, except what is overridden."""
    found = {name: value for name, value in given_by(part).items() if name in OwnKeywords.__annotations__}
    if part.proxy_file and "proxy" not in overridden:
        found["proxy"] = _proxy(part.proxy_file)
    if part.header_file and "headers" not in overridden:
        found["headers"] = _headers(part.header_file)
    if part.token_file and "token" not in overridden:
        found["token"] = read_token(Path(part.token_file))
    return cast(OwnKeywords, {name: value for name, value in found.items() if name not in overridden})


def is_same_path(one: RelaySettings, other: RelaySettings) -> bool:
    """Return whether an attachment made with `one` can go on with `other`.

    A replaced token, proxy password or value of a header makes no difference: the attachment uses the new one from the
    next request on, so that a rotation cuts no connection.
    """
    return _without_secrets(one) == _without_secrets(other)


def is_refused_again(error: Exception, refused: RelaySettings, settings: RelaySettings) -> bool:
    """Return whether `settings` would be refused with this error again, as `refused` was.

    A proxy refuses the same user and password again whatever else has changed.
    """
    if isinstance(error, ProxyPasswordError):
        return settings.proxy == refused.proxy
    return settings == refused


def _without_secrets(settings: RelaySettings) -> RelaySettings:
    names = dict.fromkeys(settings.headers or {}, "")
    further = tuple((url, _own_without_secrets(own_options(own))) for url, own in settings.further_relays)
    return replace(
        settings,
        token=None,
        sign_ins={},
        headers=names,
        proxy=_without_user(settings.proxy),
        further_relays=further,
    )


def _own_without_secrets(own: OwnKeywords) -> OwnKeywords:
    found: OwnKeywords = {**own, "token": None, "headers": dict.fromkeys(own.get("headers") or {}, "")}
    if "proxy" in found:
        found["proxy"] = _without_user(found["proxy"])
    return found


def _without_user(proxy: str | None) -> str | None:
    if proxy is None or "@" not in proxy:
        return proxy
    return urlsplit(proxy)._replace(netloc=urlsplit(proxy).netloc.rpartition("@")[2]).geturl()


def _proxy(file: str) -> str:
    try:
        return read_proxy_file(Path(file), "proxy-file ")
    except ValueError as error:
        raise UsageError(str(error)) from None


def _headers(file: str) -> dict[str, str] | None:
    try:
        return parse_headers([f"@{file}"]) or None
    except ValueError as error:
        raise UsageError(str(error).replace("--header @", "header-file ")) from None
