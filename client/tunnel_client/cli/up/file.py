"""Reads the file of `tunnel up`. It reports the mistakes of all entries together, and names the entry of each.

Of the settings of one table that are unknown or have a wrong type, it reports only the first.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tunnel.ground.rates import parse_rate
from tunnel.ground.relay_lists import split_files
from tunnel.ground.relay_options import OPTIONS
from tunnel.ground.relay_urls import relay_key
from tunnel.system.private_files import require_trusted
from tunnel_client.cli.up.declaration import ENTRY_TYPES, EntryPart, ExposePart, OwnPart, RelayPart, UpFile
from tunnel_client.cli.up.kinds import KINDS, Claim
from tunnel_client.errors import UsageError
from tunnel_client.login_file import config_directory

__all__ = ["BrokenFileError", "Entry", "ReadFile", "default_path", "option_of", "read_up_file"]

_FILE_BYTES_MAX = 1 << 20
_UNKNOWN = re.compile("the table contains unknown field `(.*?)`")
_T = TypeVar("_T")
_O = TypeVar("_O", bound=OwnPart)


def option_of(path: Path) -> str:
    """Return the option that names this file, for a command that a message proposes; empty for the default file."""
    return "" if path == default_path() else f" -c {shlex.quote(str(path))}"


class BrokenFileError(UsageError):
    """The file cannot be used. `problems` has a line for each mistake that was found."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        more = f" (and {len(problems) - 1} more: see `tunnel up --check{option_of(path)}`)" if len(problems) > 1 else ""
        super().__init__(f"{path}: {problems[0]}{more}")
        self.problems = [f"{path}: {problem}" for problem in problems]


@dataclass(frozen=True)
class Entry:
    """An entry of the file. Its name is unique among those of its kind."""

    kind: str
    name: str
    part: EntryPart

    @property
    def id(self) -> str:
        """The kind and the name, for people."""
        return f"{self.kind} {self.name}"

    def is_same(self, other: Entry) -> bool:
        """Return whether the entries differ at most in their rates."""
        return self.id == other.id and msgspec.structs.replace(self.part, rate=other.part.rate) == other.part


@dataclass(frozen=True)
class ReadFile:
    """A file without mistakes. The relative paths in its [relay] have been joined to the directory of the file."""

    path: Path
    relay: RelayPart
    entries: dict[str, Entry]  # by id, in the order of the file

    @property
    def files(self) -> list[Path]:
        """The files to watch: this file, and those with the secrets that it names. A change of any of them can change
        the settings."""
        named = [
            name
            for relay in (self.relay, *self.relay.further)
            for name in (*split_files(relay.token_file), relay.proxy_file, relay.header_file)
        ]
        return [self.path, *(Path(name) for name in dict.fromkeys(named) if name)]


def default_path() -> Path:
    """Return the path of the file that `tunnel up` uses unless another is named."""
    return config_directory() / "tunnel.toml"


def read_up_file(path: Path, *, token_file: str = "") -> ReadFile:
    """Return what the file says. Raises BrokenFileError with the mistakes, or UsageError if it cannot be read.

    `token_file`: the value of the option --token-file, if it is given; it replaces the token-file of [relay].
    """
    try:
        found = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise BrokenFileError(path, [f"this is not TOML: {error}"]) from None
    except RecursionError:
        raise BrokenFileError(path, ["this is not TOML: its brackets are nested too deeply"]) from None
    problems: list[str] = []
    for name in sorted(found.keys() - set(UpFile.__struct_fields__)):
        problems.append(f"[{name}] is not known: the tables are {', '.join(UpFile.__struct_fields__)}")
    relay = _converted("relay", found.get("relay", {}), RelayPart, problems) or RelayPart()
    relay = _located(relay, path.parent, problems)
    entries = {entry.id: entry for entry in _entries(found, problems)}
    problems += _clashes(entries.values())
    if not entries and not problems:
        problems.append("there is no entry: write at least one line under [forward], [expose] or [proxy]")
    if problems:
        raise BrokenFileError(path, problems)
    if token_file:
        absolute = [str(Path(name).absolute()) for name in split_files(token_file)]
        further = [msgspec.structs.replace(one, token_file="") for one in relay.further]
        relay = msgspec.structs.replace(relay, token_file="\n".join(absolute), further=further)
    return ReadFile(path, relay, entries)


def _text(path: Path) -> str:
    """Return the text of the file. Another user must not decide where this user's connections go."""
    try:
        require_trusted(path)
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid not in (os.geteuid(), 0):
                raise UsageError(f"{path} belongs to another user, who could lead your connections anywhere: copy it")
            content = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UsageError(
            f"{path}: there is no such file: write one with `tunnel up --example{option_of(path)}`, or name another "
            "with -c FILE"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}: check the path and its permissions") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if len(content) > _FILE_BYTES_MAX:  # otherwise, its first part would be taken for the whole
        raise UsageError(f"{path} is longer than {_FILE_BYTES_MAX >> 10} KiB: check that it is the right file")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8: write it anew, or name another file with -c FILE") from None


def _converted(where: str, found: Any, kind: type[_T], problems: list[str]) -> _T | None:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("- at `$.", "- at `").replace("Object", "the table").replace("missing", "misses")
        unknown = _UNKNOWN.match(text)
        if unknown:
            inner = text[unknown.end() :]  # the place of a table within this one, which has other settings
            text = f"{unknown[1]} is not known{inner or f': {_meant(unknown[1], kind)}'}"
        problems.append(f"{where}: {text}")
        return None


def _meant(setting: str, kind: type) -> str:
    """Return which setting of the table was meant, or all of them if that is not evident."""
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    begun = [name for name in known if name.startswith(f"{setting}-")]
    near = begun or difflib.get_close_matches(setting, known, n=1)
    return f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"


def _located(relay: RelayPart, base: Path, problems: list[str]) -> RelayPart:
    """Check what the types do not say, and join relative paths to `base`."""
    _check(problems, "relay", lambda: parse_rate(relay.rate) if relay.rate else None)
    if relay.further and not relay.url:
        problems.append("relay: write its url, since there are further relays: it is the preferred one")
    urls = [relay_key(one.url) for one in (relay, *relay.further)]
    for url in dict.fromkeys(url for url in urls if urls.count(url) > 1):
        problems.append(f"relay: {url} is named twice: name each relay once")
    further = [_located_own(one, f"relay {one.url}", base, problems) for one in relay.further]
    located = msgspec.structs.replace(_located_own(relay, "relay", base, problems), further=further)
    return msgspec.structs.replace(located, key=str(base / Path(relay.key).expanduser())) if relay.key else located


def _located_own(relay: _O, where: str, base: Path, problems: list[str]) -> _O:
    if relay.proxy and relay.proxy_file:
        problems.append(f"{where}: both proxy and proxy-file are set: name one of them")
    if "@" in relay.proxy:
        problems.append(
            f"{where}: proxy holds a password: write the URL to a file of mode 0600, and name that as proxy-file"
        )
    names = ("token_file", "proxy_file", "header_file", *(name for name, one in OPTIONS.items() if one.is_path))
    given = {name: str(base / Path(getattr(relay, name)).expanduser()) for name in names if getattr(relay, name)}
    return msgspec.structs.replace(relay, **given)


def _entries(found: dict[str, Any], problems: list[str]) -> Iterator[Entry]:
    for kind, (part_type, short) in ENTRY_TYPES.items():
        table = found.get(kind, {})
        if not isinstance(table, dict):
            problems.append(f"{kind}: this must be a table: write [{kind}], and a line for each entry below it")
            continue
        for name, value in table.items():
            where = f"{kind} {name}"
            if not isinstance(value, str | dict):
                problems.append(f"{where}: write a text, or a table with the setting {short}")
                continue
            part = _converted(where, {short: value} if isinstance(value, str) else value, part_type, problems)
            if part is None:
                continue
            if isinstance(part, ExposePart) and not part.service:
                part = msgspec.structs.replace(part, service=name)
            rate = part.rate
            is_right = _check(problems, where, lambda rate=rate: parse_rate(rate) if rate else None)  # type: ignore[misc]
            if _check(problems, where, lambda kind=kind, part=part: KINDS[kind].claims(part)) and is_right:  # type: ignore[misc]
                yield Entry(kind, name, part)


def _check(problems: list[str], where: str, parse: Callable[[], object]) -> bool:
    try:
        parse()
    except (UsageError, ValueError) as error:
        problems.append(f"{where}: {error}")
        return False
    return True


def _clashes(entries: Iterable[Entry]) -> Iterator[str]:
    """Find pairs of entries that cannot both be served, as when they need the same local port or the same name."""
    alike: defaultdict[tuple[str, object], list[tuple[Entry, Claim]]] = defaultdict(list)
    for entry in entries:
        for claim in KINDS[entry.kind].claims(entry.part):
            before = alike[claim.key]
            found = next((other for other, wanted in before if claim.excludes(wanted)), None)
            if found is not None:
                yield f"{found.id} and {entry.id} both need {claim}: change it in one of them"
            elif claim.key[1]:
                before.append((entry, claim))
