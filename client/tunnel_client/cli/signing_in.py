"""The sign-in of `tunnel login --sso`: shows where to sign in, and waits until that has happened."""

import argparse
import webbrowser
from urllib.parse import urlsplit

from tunnel.process.command_line import tell
from tunnel.sign_in.device_flow import DeviceCode, await_sign_in, begin_sign_in
from tunnel.sign_in.provider import SCOPE, SignInTerms, find_endpoints, terms_of_relay
from tunnel_client.errors import UsageError
from tunnel_client.login_file import read_logins
from tunnel_client.settings import RelaySettings
from tunnel_client.signed_in import stored_sign_in
from tunnel_client.stored_sign_in import StoredSignIn

__all__ = ["sign_in_for"]

_MINUTE_S = 60
_USUAL_SCOPES = frozenset(("openid", "profile", "email", "groups", "offline_access"))  # they tell who somebody is


async def sign_in_for(settings: RelaySettings, arguments: argparse.Namespace) -> tuple[str, StoredSignIn]:
    """Return a token for the relay, and what renews it. Raise an error with advice if the person has not signed in."""
    terms = await _terms(settings, arguments)
    endpoints = await find_endpoints(terms, settings)
    device = await begin_sign_in(terms, endpoints, settings)
    is_elsewhere = not arguments.issuer and _is_elsewhere(device, terms)
    _show(device)
    if arguments.open and is_elsewhere:
        tell("tunnel: the page is not opened, because it is elsewhere")
    elif arguments.open and not webbrowser.open(device.url_with_code):
        tell("tunnel: this machine has no browser to open it")
    found = await await_sign_in(terms, endpoints, device, settings, say=lambda text: tell(f"tunnel: {text}"))
    if not found.refresh_token:
        tell(
            f"tunnel: {terms.issuer} issued no refresh token, so this sign-in ends with the token: the scope that asks "
            "for one is offline_access"
        )
    return found.token, stored_sign_in(terms, endpoints.token, found)


async def _terms(settings: RelaySettings, arguments: argparse.Namespace) -> SignInTerms:
    try:
        if arguments.issuer:
            return SignInTerms(
                arguments.issuer, arguments.client_id, arguments.audience, arguments.scope.strip() or SCOPE
            )
        terms = await terms_of_relay(settings.url, settings)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if terms is None:
        raise UsageError(
            f"{settings.url} names no identity provider: ask its operator for one, and give --issuer and --client-id; "
            "or log in with --token-file"
        )
    tell(f"tunnel: {settings.url} asks you to sign in at {terms.issuer}, for the client {terms.client_id}")
    _warn(settings.url, terms)
    return terms


def _warn(relay: str, terms: SignInTerms) -> None:
    """Say what else the token would be good for: a hostile relay may ask for one that another server believes."""
    audience = terms.audience or terms.client_id
    if audience != terms.client_id or not set(terms.scope.split()) <= _USUAL_SCOPES:
        tell(
            f"tunnel: it gets a token for {audience}, with the scopes {terms.scope}: go on only if this is how its "
            "operator has described it"
        )
    try:
        logins = read_logins()
    except UsageError:
        return
    for login in logins:
        stored = login.sign_in
        if stored is None or login.is_for(relay) or stored.issuer != terms.issuer:
            continue
        if (stored.audience or stored.client_id) == audience:
            tell(
                f"tunnel: you are signed in at {login.relay} with tokens of this kind: {relay} could use yours there, "
                "so go on only if both belong to one operator"
            )


def _is_elsewhere(device: DeviceCode, terms: SignInTerms) -> bool:
    """Whether the page is on another host than the issuer, which the relay has named. Say so.

    Some providers do this. But a hostile one can show the page of another provider, with a code that it has got there
    for itself: who enters it signs the attacker in.
    """
    issuer = urlsplit(terms.issuer).hostname or ""
    hosts = [urlsplit(url).hostname or "" for url in (device.url, device.url_with_code)]
    for host in hosts:
        if host != issuer and not host.endswith(f".{issuer}"):
            tell(
                f"tunnel: the page is at {host}, and not at {issuer}, which the relay names: sign in there only if you "
                "know that this provider does so"
            )
            return True
    return False


def _show(device: DeviceCode) -> None:
    valid = f"{device.valid_s / _MINUTE_S:.0f} minutes" if device.valid_s > _MINUTE_S else f"{device.valid_s:.0f} s"
    if device.url_with_code == device.url:
        tell(f"tunnel: open this page on any device, and enter the code {device.code} (valid for {valid}):")
    else:
        tell(
            f"tunnel: open this page on any device, and check that it shows the code {device.code} (valid for {valid}):"
        )
    tell(f"    {device.url_with_code}")
    tell("tunnel: waiting until you have signed in (Ctrl-C ends)")
