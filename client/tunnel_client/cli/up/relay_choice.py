"""Chooses the relay and the user of `tunnel up`: from options, the file, the environment, the login, in this order."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import tunnel
from tunnel import ProxyPasswordError
from tunnel.gateway_options import parse_headers, read_proxy_file
from tunnel_client.cli.options import headers_of, proxy_of
from tunnel_client.cli.service_key import with_service_key
from tunnel_client.cli.up.file import ReadFile
from tunnel_client.errors import UsageError
from tunnel_client.settings import UNSET, USER_TIMEOUT_S, RelaySettings, find_settings

__all__ = ["chosen_settings", "is_refused_again", "is_same_path"]

T = TypeVar("T")


def chosen_settings(
    read: ReadFile, arguments: argparse.Namespace, trace: tunnel.TraceWriter | None = None
) -> RelaySettings:
    """Return the settings. Raises UsageError if one is missing or wrong, or if a file with a secret is not private."""
    part = read.relay
    proxy = proxy_of(arguments) or part.proxy or _proxy(part.proxy_file)
    found = find_settings(
        relay=arguments.relay or part.url,
        token_file=arguments.token_file or part.token_file,
        proxy=proxy or UNSET,
        ca=arguments.ca or part.ca,
        cert=arguments.cert or part.cert,
        carrier=arguments.carrier or part.carrier,
        user_timeout=_first(arguments.user_timeout, part.user_timeout, USER_TIMEOUT_S),
        insecure_http=arguments.insecure_http or part.insecure_http,
        headers=headers_of(arguments) or _headers(part.header_file) or None,
        hostname=arguments.hostname or part.hostname,
        sni=arguments.sni or part.sni,
        encryption=arguments.encryption or part.encryption,
        peer_keys=arguments.peer_key or part.peer_keys,
        links=_first(arguments.links, part.links, 1),
        pull_interval=_first(arguments.pull_interval, part.pull_interval, 0.0),
    )
    found = replace(found, rate=arguments.rate or part.rate, trace=trace)
    offers_services = any(entry.kind == "expose" for entry in read.entries.values())
    return with_service_key(found, part.key) if offers_services else found


def _first(option: T | None, in_file: T | None, default: T) -> T:
    """Return the setting of the option, else that of the file, else `default`. None: it was not given there."""
    if option is not None:
        return option
    return default if in_file is None else in_file


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
    names = dict.fromkeys(settings.headers, "")
    return replace(settings, token=None, headers=names, proxy=_without_user(settings.proxy))


def _without_user(proxy: str | None) -> str | None:
    if proxy is None or "@" not in proxy:
        return proxy
    return urlsplit(proxy)._replace(netloc=urlsplit(proxy).netloc.rpartition("@")[2]).geturl()


def _proxy(file: str) -> str:
    try:
        return read_proxy_file(Path(file), "proxy-file ") if file else ""
    except ValueError as error:
        raise UsageError(str(error)) from None


def _headers(file: str) -> dict[str, str]:
    try:
        return parse_headers([f"@{file}"]) if file else {}
    except ValueError as error:
        raise UsageError(str(error).replace("--header @", "header-file ")) from None
