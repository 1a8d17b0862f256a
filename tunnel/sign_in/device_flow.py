"""The sign-in on another device (RFC 8628): a person opens a page of the provider, and compares a code.

The provider says how often it may be asked, and for how long. Outages are survived while the code is valid.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tunnel.errors import NotAuthenticatedError, UnreachableError
from tunnel.ground.relay_options import RelayOptions
from tunnel.ground.secure_urls import is_secure_link
from tunnel.sign_in.asking import ask
from tunnel.sign_in.provider import Endpoints, SignedIn, SignInTerms, error_in, read_issued, shown
from tunnel.system.clock import passed_s

__all__ = ["DeviceCode", "await_sign_in", "begin_sign_in"]

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL_S = 5.0  # between two questions, if the provider does not say
_INTERVAL_S_MIN, _INTERVAL_S_MAX = 1.0, 60.0
_SLOWER_S = 5.0  # more, after `slow_down`
_VALID_S_MAX = 3600.0
_TEXT_MAX = 2000


class DeviceCode(msgspec.Struct, frozen=True):
    """What the provider answers to a device: where the person goes, with which code, and the secret of the device."""

    secret: str
    code: str
    url: str
    url_with_code: str
    valid_s: float
    interval_s: float

    def __repr__(self) -> str:
        return f"DeviceCode(url={self.url!r})"


async def begin_sign_in(terms: SignInTerms, endpoints: Endpoints, path: RelayOptions) -> DeviceCode:
    """Ask the provider for a code. Raise NotAuthenticatedError if it refuses, and UnreachableError if it does not
    answer as it should."""
    form = {"client_id": terms.client_id, "scope": terms.scope}
    status, found = await ask(endpoints.device, path, form)
    if status != 200:
        if status in (400, 401, 403):
            raise NotAuthenticatedError(
                f"{terms.issuer} refuses the client {terms.client_id!r} ({error_in(found)}): ask the operator which "
                "client id and scopes belong to the relay"
            )
        raise UnreachableError(f"{endpoints.device} answered {status} ({error_in(found)})")
    secret, code, url = (_text(found, name) for name in ("device_code", "user_code", "verification_uri"))
    with_code = _text(found, "verification_uri_complete") or url
    if not (secret and code and url):
        raise UnreachableError(f"{endpoints.device} answered without a code and a URL: this is no RFC 8628")
    for link in (url, with_code):
        if not is_secure_link(link) or (link.startswith("http://") and not terms.issuer.startswith("http://")):
            raise UnreachableError(f"{terms.issuer} wants people to sign in at {shown(link)}, which is no https:// URL")
    valid_s = _seconds(found, "expires_in", _VALID_S_MAX, _VALID_S_MAX)
    interval_s = max(_INTERVAL_S_MIN, _seconds(found, "interval", _INTERVAL_S, _INTERVAL_S_MAX))
    return DeviceCode(secret, shown(code), url, with_code, valid_s, interval_s)


async def await_sign_in(
    terms: SignInTerms,
    endpoints: Endpoints,
    device: DeviceCode,
    path: RelayOptions,
    *,
    say: Callable[[str], None] = lambda text: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    now_s: Callable[[], float] = passed_s,
) -> SignedIn:
    """Return the tokens when the person has signed in. Raise NotAuthenticatedError if the person has refused, or has
    not come in time. `say` tells of outages."""
    ends_s, interval_s = now_s() + device.valid_s, device.interval_s
    form = {"grant_type": _GRANT, "device_code": device.secret, "client_id": terms.client_id}
    trouble, wait_s = "", interval_s
    while now_s() + wait_s < ends_s:
        await sleep(wait_s)
        try:
            status, found = await ask(endpoints.token, path, form)
            if status >= 500 or status == 429:
                raise UnreachableError(f"{endpoints.token} answered {status}")
        except UnreachableError as error:
            if str(error) != trouble:
                trouble = str(error)
                say(f"{trouble}: asking again while the code is valid")
            wait_s = min(2 * wait_s, _INTERVAL_S_MAX)  # section 3.5: back off
            continue
        trouble, wait_s = "", interval_s
        if status == 200:
            return read_issued(found, terms)
        match found.get("error"):
            case "authorization_pending":
                continue
            case "slow_down":
                interval_s = wait_s = interval_s + _SLOWER_S
                continue
            case "access_denied":
                raise NotAuthenticatedError(f"the sign-in was refused at {terms.issuer}: sign in again to allow it")
            case "expired_token":
                break
        raise NotAuthenticatedError(f"{terms.issuer} ended the sign-in ({error_in(found)})")
    raise NotAuthenticatedError(
        f"no sign-in came while the code {device.code} was valid ({device.valid_s:.0f} s): run the command again"
    )


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return value if isinstance(value, str) and len(value) <= _TEXT_MAX else ""


def _seconds(found: dict[str, Any], name: str, default: float, most: float) -> float:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        return default
    return float(value)
