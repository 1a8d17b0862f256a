"""Tokens: how they look, whose they are, and how often somebody may get them wrong. No token is ever kept or shown.

A token is `tnl_<key id>_<secret>`. Its secret has 256 random bits, hence a plain hash of it is enough (nothing can be
guessed); its key id says which hash to compare with, in constant time.
"""

import base64
import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from random import Random

import msgspec

__all__ = [
    "KEYS_MAX",
    "FailureLimiter",
    "Identity",
    "Key",
    "TokenTable",
    "check_user_name",
    "make_token",
    "read_bearer",
    "token_digest",
]

KEYS_MAX = 2  # live at once per user: an old one and the one that replaces it
_TOKEN = re.compile(r"tnl_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
_USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY_ID = re.compile(r"[0-9a-f]{8}")
_NOBODY = "0" * 64  # no token has this digest
_MINUTE_US = 60_000_000
_ADDRESSES_MAX = 10_000  # that are remembered for having failed


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored of a token."""

    id: str
    sha256: str  # of the whole token, in hex
    created: str = ""  # a date, for people

    def __post_init__(self) -> None:
        if not _KEY_ID.fullmatch(self.id):
            raise ValueError(f"a key id is 8 hex digits, not {self.id!r}")
        if not _DIGEST.fullmatch(self.sha256):
            raise ValueError(f"key {self.id}: sha256 is not 64 hex digits")


class Identity(msgspec.Struct, frozen=True):
    """Who presented a token."""

    user: str
    key_id: str = ""


def check_user_name(name: str) -> str:
    """The name, if it may be one; ValueError if not."""
    if not _USER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no user name: up to 64 letters, digits and . _ @ -, the first a letter or digit")
    return name


def make_token(random: Random, created: str = "") -> tuple[str, Key]:
    """A new token and what to store of it. `random` must be the system's: everything rests on it."""
    key_id = f"{random.getrandbits(32):08x}"
    secret = base64.urlsafe_b64encode(random.getrandbits(256).to_bytes(32, "big")).decode().rstrip("=")
    token = f"tnl_{key_id}_{secret}"
    return token, Key(key_id, token_digest(token), created)


def token_digest(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_bearer(header: str | None) -> str:
    """The token in an Authorization header; empty if there is none."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class TokenTable:
    """Every live token, by key id. ValueError if two users have the same one."""

    def __init__(self, users: Mapping[str, Sequence[Key]]) -> None:
        self._keys: dict[str, tuple[str, Key]] = {}
        for user, keys in users.items():
            check_user_name(user)
            if len(keys) > KEYS_MAX:
                raise ValueError(f"{user} has {len(keys)} tokens, at most {KEYS_MAX}: revoke one")
            for key in keys:
                if key.id in self._keys:
                    raise ValueError(f"two tokens have the key id {key.id}: revoke one")
                self._keys[key.id] = user, key

    def __len__(self) -> int:
        return len(self._keys)

    def identify(self, token: str) -> Identity | None:
        """Whose token it is. Takes as long for a wrong one as for an unknown one."""
        match = _TOKEN.fullmatch(token)
        key_id = match[1] if match else ""
        user, key = self._keys.get(key_id, ("", None))
        is_right = hmac.compare_digest(key.sha256 if key is not None else _NOBODY, token_digest(token))
        return Identity(user, key_id) if is_right else None

    def is_live(self, identity: Identity) -> bool:
        """Whether that token still counts."""
        found = self._keys.get(identity.key_id)
        return found is not None and found[0] == identity.user


class FailureLimiter:
    """Counts wrong tokens by address, in windows of a minute. Right ones always pass: they cannot be guessed."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._windows: OrderedDict[str, tuple[int, int]] = OrderedDict()  # when it began, failures

    def failed(self, address: str, now: int) -> int:
        """A wrong token came from there. Seconds until the address is answered again; 0: now."""
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
