"""Parsers for the option values: probabilities, durations, sizes, addresses, and faults with words after a value.

A fault is a dataclass: its fields say how it stands on a command line, as in `0.05:silent`. Every error is a
ValueError that says what was expected.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, ClassVar, Self, get_type_hints

__all__ = [
    "Choice",
    "Fault",
    "Named",
    "Value",
    "number_from",
    "parse_address",
    "parse_count",
    "parse_duration_us",
    "parse_pause_us",
    "parse_probability",
    "parse_size_bytes",
]

_DURATION_US = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
_SIZE_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([^\d.]*)")
_PORT_MAX = 65_535


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """Annotates a field whose value is required. The values come first, in the order of the fields."""

    metavar: str
    parse: Callable[[str], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Annotates a field that is one of these words, or its default without any."""

    words: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """Annotates a field that is written `name=VALUE`, or has its default."""

    name: str
    metavar: str
    parse: Callable[[str], Any]


class Fault:
    """The base of dataclasses whose text form follows from their fields, which are annotated by one of the above.

    A field of type bool is a word: its own name.
    """

    __slots__ = ()
    separator: ClassVar[str] = ":"  # between the values

    @classmethod
    def grammar(cls) -> str:
        """Return the form of the text for people, such as P[:silent]."""
        values, words = _declared(cls)
        found = [cls.separator.join(value.metavar for value in values.values())]
        for word in words.values():
            match word:
                case Choice():
                    found.append(f"[{'|'.join(f':{name}' for name in word.words)}]")
                case Named():
                    found.append(f"[:{word.name}={word.metavar}]")
                case _:
                    found.append(f"[:{word}]")
        return "".join(found)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse text of the form that `grammar` shows."""
        values, words = _declared(cls)
        parts = text.split(":")
        if cls.separator != ":":
            parts[:1] = parts[0].split(cls.separator)
        found, rest = parts[: len(values)], parts[len(values) :]
        if len(found) < len(values) or not all(found):
            raise ValueError(f"{text!r} has too few parts, or an empty one: write {cls.grammar()}")
        given = {name: value.parse(part) for (name, value), part in zip(values.items(), found, strict=True)}
        for part in rest:
            name, value = _word(text, part, words)
            if name in given:
                raise ValueError(_twice(text, words[name]))
            given[name] = value
        fault = cls(**given)
        fault.check(text)
        return fault

    def check(self, text: str) -> None:
        """Raise a ValueError if the values, each of which is right, do not go together."""


def _declared(cls: type[Fault]) -> tuple[dict[str, Value], dict[str, Choice | Named | str]]:
    """Return the fields for values, and those for words: a plain str is the word of a bool."""
    values: dict[str, Value] = {}
    words: dict[str, Choice | Named | str] = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        match getattr(hint, "__metadata__", (name,) if hint is bool else ()):
            case (Value() as value, *_):
                values[name] = value
            case (Choice() | Named() | str() as word, *_):
                words[name] = word
    return values, words


def _word(text: str, part: str, words: dict[str, Choice | Named | str]) -> tuple[str, Any]:
    """Return the field that a word is for, and its value."""
    expected: list[str] = []
    for name, word in words.items():
        match word:
            case Choice() if part in word.words:
                return name, part
            case Named() if part.startswith(f"{word.name}="):
                try:
                    return name, word.parse(part.removeprefix(f"{word.name}="))
                except ValueError as error:
                    raise ValueError(f"{text!r}: {word.name}={error}") from error
            case str() if part == word:
                return name, True
        expected += word.words if isinstance(word, Choice) else [word.name + "=" if isinstance(word, Named) else word]
    raise ValueError(f"{part!r} in {text!r} is not known; expected after the value: {', '.join(expected) or 'nothing'}")


def _twice(text: str, word: Choice | Named | str) -> str:
    if isinstance(word, Choice):
        return f"{text!r}: only one of these may be given: {', '.join(word.words)}"
    return f"{text!r} has a word twice; give each at most once"


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


def parse_pause_us(text: str) -> int:
    """Parse a duration above 0."""
    found = parse_duration_us(text)
    if found == 0:
        raise ValueError(f"{text!r} is no time at all: give one above 0, such as 50ms or 20s")
    return found


def parse_size_bytes(text: str) -> int:
    """Parse a size such as `1MiB`, `64KiB` or `1000`; return bytes."""
    return _scaled(text, _SIZE_BYTES, "a size, such as 65536, 64KiB or 1MiB")


def number_from(least: int, most: int | None = None, *, what: str = "a number") -> Callable[[str], int]:
    """Return a parser of whole numbers in this range."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= (most or int(text))):
            raise ValueError(f"{text!r} is not {what} from {least} {f'to {most}' if most else 'on'}")
        return int(text)

    return parse


parse_count = number_from(1)


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
