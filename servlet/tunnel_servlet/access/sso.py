"""Single sign-on: the terms on which the relay believes an identity provider, and what a token of it says.

The provider signs a token (JWT, RFC 7519). A library checks the signature; this module checks all else.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tunnel.ground.secure_urls import is_secure_url

__all__ = [
    "ALGORITHMS",
    "LEEWAY_S",
    "SSO_PREFIX",
    "Member",
    "Members",
    "SsoError",
    "SsoTerms",
    "read_claims",
]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
SSO_PREFIX = "sso:"  # of the names of users; the name of a configured user cannot contain a colon
LEEWAY_S = 30  # by which the clocks of the relay and of the provider may differ
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@|=+/-]{0,99}")
_WORD = re.compile(r"[A-Za-z0-9._:/@+~-]{1,200}")
_GROUPS_MAX = 1000  # in one token
_FAR_S = 1 << 37  # beyond any date that a year of four digits can name
_MEMBERS_MAX = 10_000  # users


class SsoError(Exception):
    """The token of an identity provider is refused. The text says why."""


class SsoTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table [sso]: whose tokens the relay believes, and where in them it finds the user and the groups."""

    issuer: str  # the URL of the identity provider, exactly as it is in its tokens
    audience: str  # for which the tokens are meant: the client id of the relay at the provider
    user_claim: str = "sub"
    groups_claim: str = "groups"
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    keys: str = ""  # the URL of the provider's keys; empty: the provider's configuration names it
    client_id: str = ""  # of the commands of users at the provider, for `tunnel login --sso`; empty: it is not offered
    scopes: tuple[str, ...] = ("openid", "offline_access")  # for which `tunnel login --sso` asks

    def __post_init__(self) -> None:
        for name in ("issuer", "keys"):
            url = getattr(self, name)
            if (url or name == "issuer") and not is_secure_url(url):
                raise ValueError(f"{name}: {url!r} is not a URL: write it as in https://login.example")
        if not self.audience:
            raise ValueError("audience: it is empty: write the client id of the relay at the provider")
        if self.client_id:  # all of them stand in a header
            for key, words in (("client_id", [self.client_id]), ("audience", [self.audience]), ("scopes", self.scopes)):
                for word in words:
                    if not _WORD.fullmatch(word):
                        raise ValueError(f"{key}: {word!r} has other characters than letters, digits and ._:/@+~-")
        wrong = [name for name in self.algorithms if name not in ALGORITHMS]
        if wrong or not self.algorithms:
            raise ValueError(
                f"algorithms: {', '.join(wrong) or 'none'} cannot be used: choose of {', '.join(ALGORITHMS)}"
            )

    @property
    def challenge(self) -> str:
        """The parameters of a WWW-Authenticate header that tell commands where their user can sign in."""
        if not self.client_id:
            return ""
        scope = " ".join(self.scopes)
        named = (("issuer", self.issuer), ("client_id", self.client_id), ("audience", self.audience), ("scope", scope))
        return "".join(f', {name}="{value}"' for name, value in named)


class Member(msgspec.Struct, frozen=True):
    """A user whom the identity provider has named, until the token expires."""

    user: str
    groups: tuple[str, ...]
    expires_s: int
    issued_s: int


def read_claims(claims: Mapping[str, Any], terms: SsoTerms, now_s: float) -> Member:
    """Return the user of a token whose signature is right. Raise SsoError if the relay must not believe it."""
    if claims.get("iss") != terms.issuer:
        raise SsoError(f"the token is of the issuer {claims.get('iss')!r}, and the relay believes {terms.issuer!r}")
    audience = claims.get("aud")
    if terms.audience not in (audience if isinstance(audience, list) else [audience]):
        raise SsoError(f"the token is for the audience {audience!r}, and not for {terms.audience!r}")
    expires_s = _time(claims, "exp", needed=True)
    if expires_s + LEEWAY_S <= now_s:
        raise SsoError(f"the token expired {now_s - expires_s:.0f} s ago by the clock of the relay: get a new one")
    for name in ("nbf", "iat"):
        late_s = _time(claims, name) - now_s
        if late_s > LEEWAY_S:
            raise SsoError(
                f"the token is not valid yet: its time {name!r} is {late_s:.0f} s ahead of the clock of the relay: "
                "wait, or set the clocks"
            )
    return Member(SSO_PREFIX + _user(claims, terms), _groups(claims, terms), expires_s, _time(claims, "iat"))


def _groups(claims: Mapping[str, Any], terms: SsoTerms) -> tuple[str, ...]:
    """Return the groups of the user. Some providers write a single one as a text, not as a list of one."""
    found = claims.get(terms.groups_claim, [])
    if isinstance(found, str):
        found = [found] if found else []
    if not isinstance(found, list) or len(found) > _GROUPS_MAX or not all(isinstance(one, str) for one in found):
        raise SsoError(
            f"the claim {terms.groups_claim!r} of the token is neither a name nor a list of at most {_GROUPS_MAX} names"
        )
    return tuple(found)


def _user(claims: Mapping[str, Any], terms: SsoTerms) -> str:
    value = claims.get(terms.user_claim)
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise SsoError(
            f"the claim {terms.user_claim!r} of the token is no name of up to 100 letters, digits and . _ @ | = + / -"
        )
    if terms.user_claim == "email" and claims.get("email_verified") is not True:
        raise SsoError("the identity provider has not verified the email address in the token")
    return value


def _time(claims: Mapping[str, Any], name: str, *, needed: bool = False) -> int:
    value = claims.get(name, None if needed else 0)
    if type(value) not in (int, float) or not 0 <= value < _FAR_S:
        raise SsoError(f"the time {name!r} of the token is missing, or is not a time")
    return int(value)


class Members:
    """The users whom the identity provider has named, with their groups, until their newest token expires."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def join(self, member: Member, now_s: float) -> bool:
        """Note what a token says of a user. Return whether it changes the groups of a user who is present.

        The groups are those of the token that was issued last. Of tokens that do not differ in this, it is the one that
        expires last; if they expire together, the groups that all of them name. So tokens that a user sends in turn do
        not change the groups each time, which costs a review of all endpoints. Raise SsoError if there are too many
        users.
        """
        known = self._members.get(member.user)
        if known is None:
            if len(self._members) >= _MEMBERS_MAX:
                self.drop_expired(now_s)
            if len(self._members) >= _MEMBERS_MAX:
                raise SsoError(f"the relay has {_MEMBERS_MAX} users of the identity provider already")
            self._members[member.user] = member
            return False
        ages = [(one.issued_s, one.expires_s) for one in (known, member)]
        if ages[0] == ages[1]:
            groups = tuple(group for group in known.groups if group in member.groups)
        else:
            groups = known.groups if ages[0] > ages[1] else member.groups
        issued_s, expires_s = map(max, *ages)
        self._members[member.user] = msgspec.structs.replace(
            member, groups=groups, expires_s=expires_s, issued_s=issued_s
        )
        return groups != known.groups

    def groups_of(self, user: str) -> tuple[str, ...]:
        """Return the groups of a user; none if the user is not present."""
        found = self._members.get(user)
        return () if found is None else found.groups

    def is_present(self, user: str, now_s: float) -> bool:
        """Whether a token of the user is valid."""
        found = self._members.get(user)
        return found is not None and found.expires_s + LEEWAY_S > now_s

    def drop_expired(self, now_s: float) -> list[str]:
        """Forget the users whose tokens have all expired, and return them."""
        gone = [user for user in self._members if not self.is_present(user, now_s)]
        for user in gone:
            del self._members[user]
        return gone
