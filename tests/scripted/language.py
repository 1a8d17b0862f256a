"""The language of the scripts: parses lines of text into steps. README.md explains it to people.

This module does not know the meaning of a command or a packet; see `commands.py` and `packets.py`.
"""

import enum
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

__all__ = ["Kind", "Phrase", "Script", "ScriptError", "Step", "parse_number", "parse_script", "parse_steps"]

DEFAULT_CONNECTION = "c"
REPEATS_MAX = 4096  # packets that one phrase may stand for

_UNITS = {"": 1, "us": 1, "ms": 1000, "s": 1_000_000, "min": 60_000_000, "K": 1024, "M": 1024 * 1024}
_NUMBER = re.compile(r"(-?)(0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?)(us|ms|s|min|K|M)?")
_TIME = re.compile(r"([+@])(\S+)\s+")
_MARKS = re.compile(r"([<>!=])\s+")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_CLAUSES = re.compile(r"# PROTOCOL ([0-9. ,]+)")
_COMMENT = re.compile(r"(^|\s)#.*$")


class ScriptError(Exception):
    """A script that cannot be parsed, or that the endpoint does not follow."""


class Kind(enum.Enum):
    """The kind of a line; the value is its mark."""

    COMMAND = ""
    IN = "<"
    OUT = ">"
    EVENT = "!"
    FACT = "="


@dataclass(frozen=True)
class Phrase:
    """`WORD@connection argument key=value`."""

    word: str
    connection: str = DEFAULT_CONNECTION
    arguments: tuple[str, ...] = ()
    fields: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        name = self.word if self.connection == DEFAULT_CONNECTION else f"{self.word}@{self.connection}"
        return " ".join((name, *self.arguments, *(f"{key}={value}" for key, value in self.fields.items())))


@dataclass(frozen=True)
class Step:
    """One line: its time and its phrases. Several phrases are a batch that arrives, or packets or events in order."""

    line: int
    text: str
    kind: Kind
    phrases: tuple[Phrase, ...]
    at_us: int | None = None
    after_us: int | None = None

    def moment(self, now: int) -> int:
        """Return the virtual time of this step if the step before was at `now`."""
        if self.after_us is not None:
            return now + self.after_us
        return now if self.at_us is None else self.at_us


@dataclass(frozen=True)
class Script:
    """A whole file."""

    path: Path
    clauses: tuple[str, ...]
    sentence: str
    steps: tuple[Step, ...]


def parse_number(text: str) -> int:
    """Read a number with an optional unit, as microseconds or bytes. Raise ValueError if it is no number."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"not a number: {text}")
    sign, digits, unit = match.groups(default="")
    if digits.startswith("0x"):
        value = int(digits, 16)
    else:
        whole, _, fraction = digits.partition(".")
        scale = 10 ** len(fraction)
        value, rest = divmod(int(whole + fraction) * _UNITS[unit], scale)
        if rest:
            raise ValueError(f"not a whole number of microseconds or bytes: {text}")
    return -value if sign else value


def parse_script(path: Path) -> Script:
    """Read a file; raise ScriptError, with file and line, if it breaks the language."""
    lines = path.read_text().splitlines()
    header = []
    for line in lines:
        if not line.startswith("#"):
            break
        header.append(line)
    match = _CLAUSES.fullmatch(header[0].strip()) if header else None
    sentence = " ".join(line.lstrip("# ") for line in header[1:])
    if match is None or not sentence:
        raise ScriptError(f'{path}:1: a script starts with "# PROTOCOL <clauses>" and a sentence about what it shows')
    clauses = tuple(clause.strip() for clause in match[1].split(","))
    return Script(path, clauses, sentence, tuple(parse_steps("\n".join(lines), str(path))))


def parse_steps(text: str, source: str) -> list[Step]:
    """Return the steps of a text; `source` names the text in errors."""
    steps = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", raw).strip()
        if line:
            try:
                steps.append(_parse_line(number, line))
            except ValueError as error:
                raise ScriptError(f"{source}:{number}: {line}\n  {error}") from None
    return steps


def _parse_line(number: int, line: str) -> Step:
    rest = line
    at_us = after_us = None
    if match := _TIME.match(rest + " "):
        rest = rest[match.end() :]
        if match[1] == "+":
            after_us = parse_number(match[2])
        else:
            at_us = parse_number(match[2])
    kind = Kind.COMMAND
    if match := _MARKS.match(rest):
        kind = Kind(match[1])
        rest = rest[match.end() :]
    if not rest and kind is Kind.COMMAND:
        rest = "wait"
    phrases = tuple(phrase for part in rest.split(";") for phrase in _expand(_parse_phrase(part)))
    return Step(number, line, kind, phrases, at_us, after_us)


def _parse_phrase(text: str) -> Phrase:
    words = text.split()
    if not words:
        raise ValueError("an empty phrase")
    name, _, connection = words[0].partition("@")
    arguments = []
    fields: dict[str, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals:
            arguments.append(word)
        elif key in fields:
            raise ValueError(f"{key} is given twice")
        else:
            fields[key] = value
    return Phrase(name, connection or DEFAULT_CONNECTION, tuple(arguments), fields)


def _expand(phrase: Phrase) -> list[Phrase]:
    """Return the phrases that `seq=1..8` and `times=8` stand for."""
    fields = dict(phrase.fields)
    times = parse_number(fields.pop("times", "1"))
    match = _RANGE.fullmatch(fields.get("seq", ""))
    numbers = range(int(match[1]), int(match[2]) + 1) if match else None
    if times > REPEATS_MAX or (numbers is not None and len(numbers) > REPEATS_MAX):
        raise ValueError(f"more than {REPEATS_MAX} packets in one phrase")
    if numbers is None:
        return [replace(phrase, fields=fields)] * times
    return [replace(phrase, fields=fields | {"seq": str(number)}) for number in numbers for _ in range(times)]
