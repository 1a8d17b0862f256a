"""Tokens: their format, their owners, and the limit on wrong ones. The relay never stores or logs a token.

A token is `tnl_<key id>_<secret>`. Its secret has 256 random bits and cannot be guessed, so a plain hash is enough. The
key id selects the hash that the token is compared with, in constant time.
"""

import base64
import hashlib
import hmac
import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypedDict, Unpack

import msgspec

from tunnel_servlet.access.instants import read_instant, show_instant

__all__ = [
    "KEYS_MAX",
    "REVOKED",
    "USED",
    "FailureLimiter",
    "Identity",
    "Key",
    "KeyLimits",
    "TokenTable",
    "check_description",
    "check_user_name",
    "make_admin_secret",
    "make_token",
    "read_bearer",
    "token_digest",
]

REVOKED = "the token was revoked"
USED = "the token is for one endpoint, and another one has used it; ask the operator for a new one"
KEYS_MAX = 2  # valid tokens per user: the old one and the one that replaces it
_TOKEN = re.compile(r"tnl_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
_USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY_ID = re.compile(r"[0-9a-f]{8}")
_NOBODY = "0" * 64  # no token has this digest
_MINUTE_US = 60_000_000
_ADDRESSES_MAX = 10_000  # addresses with failures that are remembered
_DESCRIPTION_MAX = 200  # letters


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored record of a token: its key id, its hash, and what limits its use."""

    id: str
    sha256: str  # of the whole token, in hex
    created: str = ""  # a date, for people
    expires: str = ""  # the time from which it is not valid, as `write_instant` writes it; empty: it stays valid
    description: str = ""  # for people
    single_use: bool = False  # only the first endpoint that shows it may use it
    endpoints_max: int = 0  # endpoints that are attached with it at one time; 0: as many as the user may have

    def __post_init__(self) -> None:
        if not _KEY_ID.fullmatch(self.id):
            raise ValueError(f"a key id is 8 hex digits, not {self.id!r}")
        if not _DIGEST.fullmatch(self.sha256):
            raise ValueError(f"key {self.id}: sha256 is not 64 hex digits")
        try:
            self.expires_s  # noqa: B018 - it raises
        except ValueError as error:
            raise ValueError(f"key {self.id}: expires: {error}") from None
        if self.single_use and not self.expires:
            raise ValueError(f"key {self.id}: a token with single_use = true needs a time `expires`")
        if self.endpoints_max < 0:
            raise ValueError(f"key {self.id}: endpoints_max is at least 0, not {self.endpoints_max}")
        check_description(self.description)

    @property
    def expires_s(self) -> float:
        """The time from which the token is not valid, in seconds since the epoch."""
        return read_instant(self.expires) if self.expires else math.inf


class KeyLimits(TypedDict, total=False):
    """The fields of a `Key` that the operator chooses."""

    expires: str
    description: str
    single_use: bool
    endpoints_max: int


class Identity(msgspec.Struct, frozen=True):
    """The user and the key id of a presented token, or of a certificate."""

    user: str
    key_id: str = ""
    names: tuple[str, ...] = ()  # in the certificate; none for a token
    expires_s: int = 0  # of the certificate, or of the identity provider's token; the relay's tokens are in its table


def check_user_name(name: str) -> str:
    """Return the name if it is a valid user name. Raise ValueError if it is not."""
    if not _USER_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a user name: use up to 64 letters, digits and . _ @ -, and start with a letter or digit"
        )
    return name


def check_description(text: str) -> str:
    """Return the text if it may describe a token. Raise ValueError if it may not."""
    if len(text) > _DESCRIPTION_MAX or not text.isprintable():
        raise ValueError(f"a description has up to {_DESCRIPTION_MAX} printable letters, on one line")
    return text


def make_token(random: Random, created: str = "", **limits: Unpack[KeyLimits]) -> tuple[str, Key]:
    """Return a new token and the record to store. `random` must be the system's: the token's security rests on it."""
    key_id = f"{random.getrandbits(32):08x}"
    token = f"tnl_{key_id}_{_secret(random)}"
    return token, Key(key_id, token_digest(token), created, **limits)


def make_admin_secret(random: Random) -> str:
    """Return a new secret for the admin listener. `random` must be the system's."""
    return f"adm_{_secret(random)}"


def _secret(random: Random) -> str:
    return base64.urlsafe_b64encode(random.getrandbits(256).to_bytes(32, "big")).decode().rstrip("=")


def token_digest(token: str) -> str:
    """Return the hash of a token, as it is stored. A header may hold any bytes, as surrogates if they are not UTF-8."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def read_bearer(header: str | None) -> str:
    """Return the token in an Authorization header, or an empty string if there is none."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class TokenTable:
    """All valid tokens, by key id. Raises ValueError if two tokens have the same key id or a user has too many."""

    def __init__(self, users: Mapping[str, Sequence[Key]]) -> None:
        self._keys: dict[str, tuple[str, Key]] = {}
        self.revoked = [user for user, keys in users.items() if not keys]  # listed, but without any token
        for user, keys in users.items():
            check_user_name(user)
            if len(keys) > KEYS_MAX:
                raise ValueError(f"{user} has {len(keys)} tokens, but at most {KEYS_MAX} are allowed: revoke one")
            for key in keys:
                if key.id in self._keys:
                    raise ValueError(f"two tokens have the key id {key.id}: revoke one")
                self._keys[key.id] = user, key
        self._expiries = {key.id: key.expires_s for _, key in self._keys.values()}
        # By user: the time from which none of the user's tokens is valid.
        self._users = {user: max(self._expiries[key.id] for key in keys) for user, keys in users.items() if keys}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def users(self) -> list[str]:
        """The users that have a token."""
        return list(self._users)

    @property
    def keys(self) -> dict[str, tuple[str, Key]]:
        """The users and the records of their tokens, by key id."""
        return dict(self._keys)

    def has_user(self, user: str, now_s: float) -> bool:
        """Whether the user has a token that has not expired."""
        return self._users.get(user, -math.inf) > now_s

    def key(self, key_id: str) -> Key | None:
        """Return the record of a token, or None if there is none."""
        found = self._keys.get(key_id)
        return None if found is None else found[1]

    def expired_ids(self, now_s: float) -> list[str]:
        """Return the key ids of the tokens that have expired."""
        return [key_id for key_id, expires_s in self._expiries.items() if expires_s <= now_s]

    def next_expiry_s(self, now_s: float) -> float:
        """Return the time at which the next token expires, or the last one if all have; infinity if none ever does."""
        times = [expires_s for expires_s in self._expiries.values() if expires_s < math.inf]
        return min((one for one in times if one > now_s), default=max(times, default=math.inf))

    def identify(self, token: str) -> Identity | None:
        """Return the token's owner, or None if there is no such token. Ask `why_ended` whether it may be used.

        A known key id with a wrong secret takes as long as an unknown key id.
        """
        match = _TOKEN.fullmatch(token)
        key_id = match[1] if match else ""
        user, key = self._keys.get(key_id, ("", None))
        is_right = hmac.compare_digest(key.sha256 if key is not None else _NOBODY, token_digest(token))
        return Identity(user, key_id) if is_right else None

    def why_ended(self, identity: Identity, now_s: float) -> str:
        """Return why the token of this identity is not valid any more, for its user; an empty text if it is valid."""
        found = self._keys.get(identity.key_id)
        if found is None or found[0] != identity.user:
            return REVOKED
        if self._expiries[identity.key_id] > now_s:
            return ""
        return f"the token expired on {show_instant(found[1].expires)}; ask the operator for a new one"


class FailureLimiter:
    """Counts wrong tokens by address, in windows of a minute. Valid tokens always pass: they cannot be guessed."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        # By address: when its present window began, and the failures in it.
        self._windows: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def count_failure(self, address: str, now: int) -> int:
        """Count a wrong token from the address. Return the seconds for which to refuse it, or 0 to answer it now."""
        began_us, count = self._windows.get(address, (now, 0))
        if now - began_us >= _MINUTE_US:
            began_us, count = now, 0
        self._windows[address] = began_us, count + 1
        self._windows.move_to_end(address)
        if len(self._windows) > _ADDRESSES_MAX:
            self._windows.popitem(last=False)
        if count < self.per_minute:
            return 0
        return max(1, -((now - began_us - _MINUTE_US) // 1_000_000))
