"""Parsers for the option values: probabilities, durations, sizes, addresses, and the words after a value.

A value and its words are separated by colons, as in `0.05:silent`. Every error is a ValueError that says what was
expected.
"""

import math
import re
from collections.abc import Sequence

__all__ = [
    "SIDES",
    "one_of",
    "parse_address",
    "parse_duration_us",
    "parse_probability",
    "parse_size_bytes",
    "split_words",
    "value_of",
]

_DURATION_US = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
_SIZE_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([^\d.]*)")
_PORT_MAX = 65_535
SIDES = ("request", "response")


def parse_probability(text: str) -> float:
    """Parse a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is not a probability: a number from 0 to 1, such as 0.05")
    return value


def parse_duration_us(text: str) -> int:
    """Parse a duration such as `60s`, `50ms`, `1.5s` or `2min`; return microseconds. The unit is required."""
    return _scaled(text, _DURATION_US, "a duration with its unit, such as 50ms, 1.5s or 2min")


def parse_size_bytes(text: str) -> int:
    """Parse a size such as `1MiB`, `64KiB` or `1000`; return bytes."""
    return _scaled(text, _SIZE_BYTES, "a size, such as 65536, 64KiB or 1MiB")


def parse_count(text: str) -> int:
    """Parse a number from 1 on."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ValueError(f"{text!r} is not a number from 1 on, such as 2")
    return int(text)


def _scaled(text: str, units: dict[str, int], expected: str) -> int:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].strip() not in units:
        raise ValueError(f"{text!r} is not {expected}")
    return round(float(match[1]) * units[match[2].strip()])


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT` or `[IPV6]:PORT`; return host and port."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = len(host) == len(bare) + 2
    valid_port = port.isascii() and port.isdecimal() and int(port) <= _PORT_MAX
    if not colon or not bare or not valid_port or (":" in bare) != bracketed:
        raise ValueError(f"{text!r} is not an address: HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080")
    return bare, int(port)


def split_words(text: str, *, values: int, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split `text` at colons; return the first `values` parts, which are required, and the words after them.

    Each word may occur at most once, in any order. In `words`, an entry that ends in "=" allows all words that begin
    with it.
    """
    parts = text.split(":")
    found, rest = parts[:values], parts[values:]
    if len(found) < values or not all(found):
        raise ValueError(f"{text!r} has too few parts, or an empty one: it needs {values} or more, separated by colons")
    names = [word.partition("=")[0] + ("=" if "=" in word else "") for word in rest]
    for word, name in zip(rest, names, strict=True):
        if name not in words:
            expected = ", ".join(words) if words else "nothing"
            raise ValueError(f"{word!r} in {text!r} is not known; expected after the value: {expected}")
    if len(set(names)) < len(names):
        raise ValueError(f"{text!r} has a word twice; give each at most once")
    return found, rest


def value_of(words: Sequence[str], name: str) -> str | None:
    """Return what follows `name=` in the word that begins with it; None if there is no such word."""
    return next((word.removeprefix(f"{name}=") for word in words if word.startswith(f"{name}=")), None)


def one_of(text: str, found: Sequence[str], choices: Sequence[str]) -> str:
    """Return the one word in `found` that is among `choices`, or "". Raise ValueError if there are several."""
    chosen = [word for word in found if word in choices]
    if len(chosen) > 1:
        raise ValueError(f"{text!r}: only one of these may be given: {', '.join(choices)}")
    return chosen[0] if chosen else ""
