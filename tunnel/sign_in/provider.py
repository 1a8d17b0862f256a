"""The identity provider at which a person signs in: what names it, its endpoints, and the tokens that it issues."""

import base64
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tunnel.carriers.dialing.challenges import Challenge
from tunnel.errors import NotAuthenticatedError, UnreachableError
from tunnel.ground.printable import printable
from tunnel.ground.relay_options import RelayOptions
from tunnel.ground.secure_urls import is_secure_url
from tunnel.sign_in.asking import ask, ask_relay

__all__ = ["Endpoints", "SignInTerms", "SignedIn", "find_endpoints", "refresh", "terms_of_relay"]

SCOPE = "openid offline_access"  # an ID token, and a refresh token
_SHOWN_MAX = 200  # letters of a text of the provider
_TEXT_MAX = 16 << 10  # letters of a token
_FAR_S = 1 << 37  # beyond any date that a year of four digits can name


class SignInTerms(msgspec.Struct, frozen=True):
    """Where a person signs in for a relay: at which provider, as which client, for whom, and for which scopes."""

    issuer: str
    client_id: str
    audience: str = ""  # of the tokens that the relay believes; empty: the client
    scope: str = SCOPE

    def __post_init__(self) -> None:
        if not is_secure_url(self.issuer):
            raise ValueError(f"the issuer {self.issuer!r} is no URL: write it as in https://login.example")
        if not self.client_id or not self.client_id.isprintable():
            raise ValueError("the client id at the provider is missing: ask the operator of the relay for it")

    @property
    def believed_audience(self) -> str:
        """For whom a token must be."""
        return self.audience or self.client_id


class Endpoints(msgspec.Struct, frozen=True):
    """The places of the provider that a sign-in needs."""

    device: str
    token: str


class SignedIn(msgspec.Struct, frozen=True):
    """What the provider has issued: a token for the relay, and the right to the next one, both secret."""

    token: str
    refresh_token: str
    expires_s: int  # by this machine's clock, whatever the provider's says
    renew_s: int  # when to ask for the next token

    def __repr__(self) -> str:
        return f"SignedIn(expires_s={self.expires_s})"


async def terms_of_relay(url: str, path: RelayOptions) -> SignInTerms | None:
    """Return where the relay says that people sign in; None if it says nothing. Raise as `ask_relay` does, and
    ValueError if it names a provider that cannot be its own."""
    found = _terms_in(await ask_relay(url, path))
    if found is not None and found.issuer.startswith("http://") and not url.startswith("http://"):
        raise ValueError(f"{url} names the issuer {found.issuer}, which is on this machine: tell its operator")
    return found


def _terms_in(challenges: Iterable[Challenge]) -> SignInTerms | None:
    for one in challenges:
        said = one.parameters
        if one.scheme == "bearer" and "issuer" in said:
            names = ("issuer", "client_id", "audience", "scope")
            return SignInTerms(**{name: said[name] for name in names if name in said})
    return None


async def find_endpoints(terms: SignInTerms, path: RelayOptions) -> Endpoints:
    """Return the places that the provider's configuration names. Raise UnreachableError if it does not."""
    url = f"{terms.issuer.rstrip('/')}/.well-known/openid-configuration"
    status, found = await ask(url, path)
    if status != 200 or found.get("issuer") != terms.issuer:
        raise UnreachableError(f"{url} is not the configuration of the issuer {terms.issuer}: check the issuer")
    if "device_authorization_endpoint" not in found:
        raise UnreachableError(
            f"{terms.issuer} offers no sign-in for devices (RFC 8628): get a token with the provider's own command, "
            "and give it with --token-file"
        )
    device, token = str(found["device_authorization_endpoint"]), str(found.get("token_endpoint"))
    for place in (device, token):
        if not _is_allowed(place, terms):
            raise UnreachableError(f"{url} names {shown(place)}, which is no https:// URL: tell the operator of it")
    return Endpoints(device, token)


def _is_allowed(place: str, terms: SignInTerms) -> bool:
    """Whether secrets may go to this place that the provider names. Only one on this machine needs no TLS."""
    return is_secure_url(place) and (place.startswith("https://") or terms.issuer.startswith("http://"))


async def refresh(terms: SignInTerms, place: str, refresh_token: str, path: RelayOptions) -> SignedIn:
    """Return the next token. Raise NotAuthenticatedError if the provider has ended the sign-in, or issues no token for
    the relay any more, and UnreachableError if it does not answer."""
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": terms.client_id}
    status, found = await ask(place, path, form)
    if status == 200:
        signed_in = _find_issued(found, terms, refresh_token)
        if signed_in is None:  # the ID token may be missing in this answer (OpenID Connect Core 1.0, 12.2)
            raise NotAuthenticatedError(
                f"{terms.issuer} renews this sign-in without a token for {terms.believed_audience!r}, so it lasts as "
                "long as the present token"
            )
        return signed_in
    if status in (400, 401, 403) and (isinstance(found.get("error"), str) or not found):
        raise NotAuthenticatedError(f"{terms.issuer} renews this sign-in no more ({error_in(found)})")
    raise UnreachableError(f"{place} answered {status} ({error_in(found)})")


def read_issued(found: Mapping[str, Any], terms: SignInTerms) -> SignedIn:
    """Return what the answer to a sign-in holds. Raise NotAuthenticatedError if no token there is for the relay."""
    signed_in = _find_issued(found, terms)
    if signed_in is None:
        raise NotAuthenticatedError(
            f"{terms.issuer} issued no token for {terms.believed_audience!r}, which the relay believes: ask the "
            "operator which client id and scopes belong to the relay"
        )
    return signed_in


def _find_issued(found: Mapping[str, Any], terms: SignInTerms, refresh_token: str = "") -> SignedIn | None:
    """Return what the answer of the token endpoint holds: of the tokens there, the one that the relay believes; None if
    there is none. Without a new refresh token, the present one stays."""
    for name in ("id_token", "access_token"):
        token = found.get(name)
        claims = claims_in(token)
        if claims is None or claims.get("iss") != terms.issuer:
            continue
        named = claims.get("aud")
        if terms.believed_audience in (named if isinstance(named, list) else [named]):
            assert isinstance(token, str)
            newer = found.get("refresh_token")
            kept = newer if isinstance(newer, str) and newer and len(newer) <= _TEXT_MAX else refresh_token
            now_s, lifetime_s = int(time.time()), _lifetime_s(claims)
            return SignedIn(token, kept, now_s + lifetime_s, now_s + lifetime_s * 4 // 5)
    return None


def claims_in(token: Any) -> dict[str, Any] | None:
    """Return what a JWT says, which is not checked here; None if it is no JWT."""
    if not isinstance(token, str) or len(token) > _TEXT_MAX or not token.isascii() or token.count(".") != 2:
        return None
    part = token.split(".")[1]
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _lifetime_s(claims: Mapping[str, Any]) -> int:
    """Return for how long a new token is valid. The provider's clock may differ from this machine's."""
    now_s = time.time()
    ends_s, began_s = _time(claims.get("exp"), now_s), _time(claims.get("iat"), now_s)
    return max(0, int(ends_s - began_s))


def _time(value: Any, default: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _FAR_S:
        return default
    return value


def error_in(found: Mapping[str, Any]) -> str:
    """Return the error that an answer names, on one line for people."""
    parts = (found.get("error"), found.get("error_description"))
    return ": ".join(shown(part) for part in parts if isinstance(part, str) and part) or "no reason"


def shown(text: object) -> str:
    """Return a text of the provider, on one line for people."""
    return printable(str(text)[:_SHOWN_MAX])
