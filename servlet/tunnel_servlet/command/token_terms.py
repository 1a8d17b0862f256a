"""What limits a token: until when it is valid, for how many endpoints, and what the operator calls it."""

import argparse
import re
import time
from datetime import UTC, date, datetime

from msgspec.structs import replace

from tunnel_servlet.access.instants import show_instant
from tunnel_servlet.access.tokens import Key, KeyLimits, check_description
from tunnel_servlet.config import ConfigError
from tunnel_servlet.web.tokens.files import write_instant

__all__ = ["WHEN_HELP", "expire", "is_over", "key_to_drop", "new_key_limits", "parse_when", "terms_text"]

_NEVER = "never"
_NOW = "now"
WHEN_HELP = (
    "a time such as 90m, 12h or 30d from now, a day such as 2027-01-31, which is its end in UTC, `now` or `never`"
)
_AFTER = re.compile(r"(\d{1,6})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
_SINGLE_USE_S = 86_400  # a token for a single use must expire: what has forgotten it is then no danger


def parse_when(text: str) -> str:
    """Return the time that a person wrote, as it is stored; empty for `never`."""
    if text == _NEVER:
        return ""
    if text == _NOW:
        return write_instant(time.time())
    after = _AFTER.fullmatch(text)
    try:
        if after:
            return write_instant(time.time() + int(after[1]) * _SECONDS[after[2]])
        day = date.fromisoformat(text)
        return write_instant(datetime(day.year, day.month, day.day, 23, 59, 59, tzinfo=UTC).timestamp())
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write {WHEN_HELP}") from None


def new_key_limits(arguments: argparse.Namespace) -> KeyLimits:
    """Return what the options of `user add` and `rotate` say about the new token. Raise ConfigError if it is wrong."""
    expires = arguments.expires
    if arguments.single_use and not expires:
        if expires is not None:
            raise ConfigError("--single-use: such a token must expire: leave out --expires never")
        expires = write_instant(time.time() + _SINGLE_USE_S)
    try:
        return {
            "expires": expires or "",
            "description": check_description(arguments.description),
            "single_use": arguments.single_use,
            "endpoints_max": arguments.endpoints_max,
        }
    except ValueError as error:
        raise ConfigError(f"--description: {error}") from None


def expire(keys: tuple[Key, ...], key_id: str, expires: str) -> tuple[Key, ...]:
    """Return the keys with another time of expiry: all of them, or the one with this key id. Raise ConfigError if a
    token cannot have it."""
    meant = [key for key in keys if not key_id or key.id == key_id]
    if any(key.single_use and not expires for key in meant):
        raise ConfigError("a token for a single use must expire: write a time in place of never")
    return tuple(replace(key, expires=expires) if key in meant else key for key in keys)


def is_over(key: Key) -> bool:
    """Whether the token has expired by the clock of this machine."""
    return key.expires_s <= time.time()


def key_to_drop(keys: tuple[Key, ...]) -> Key:
    """Return the key that makes room for another one: the oldest that has expired, else the oldest."""
    return next(filter(is_over, keys), keys[0])


def terms_text(key: Key) -> str:
    """Return the limits of a token for people, in a few words; empty if it has none."""
    when = show_instant(key.expires)
    expires = (f"not valid since {when}" if is_over(key) else f"valid until {when}") if when else ""
    endpoints = f"for at most {key.endpoints_max} endpoint(s) at a time" if key.endpoints_max else ""
    return ", ".join(filter(None, (expires, "for one endpoint" if key.single_use else "", endpoints)))
