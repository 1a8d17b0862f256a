"""Declares the settings in the file of `tunnel up`, once: the parser and the JSON schema are both made from this.

An entry is written as a text, in the form that the command line takes, or as a table when it has further settings.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta

from tunnel.ground.relay_options import OPTIONS, OwnKeywords

__all__ = [
    "ENTRY_TYPES",
    "EntryPart",
    "ExposePart",
    "ForwardPart",
    "FurtherPart",
    "OwnPart",
    "ProxyPart",
    "RelayPart",
    "UpFile",
    "json_schema",
]

_RATE = "bytes per second in each direction, such as 20 MiB/s; bytes that exceed it wait"
Rate: TypeAlias = Annotated[str, Meta(description=_RATE, examples=["20 MiB/s"])]
FileName: TypeAlias = Annotated[
    str, Meta(description="a path; a relative path is relative to the directory of this file")
]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, lt=1e9)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """A table of the file. Unknown settings are errors, so that a slip of the pen does not go unnoticed."""


_P = TypeVar("_P", bound=_Part)


def _made(form: Any, *parts: object) -> Any:
    """Return a type that is known only when the program runs."""
    return form[parts]


def _with_options(declared: type[_P], names: Collection[str] = tuple(OPTIONS)) -> type[_P]:
    """Add these options of a relay, except those that the table declares itself."""
    added: list[tuple[str, Any, object]] = []
    for name, option in OPTIONS.items():
        if name not in names or option.kind is None or name in declared.__struct_fields__:
            continue
        kind = _made(Annotated, option.kind, Meta(description=option.text or None, ge=option.least, le=option.most))
        if option.kind in (int, float):
            added.append((name, kind | None, None))
        elif option.choices:
            added.append((name, _made(Literal, "", *option.choices), ""))
        else:
            added.append((option.plural or name, kind, option.kind()))
    made = msgspec.defstruct(declared.__name__, added, bases=(declared,), module=declared.__module__, frozen=True)
    return cast(type[_P], made)


def _with_own_options(declared: type[_P]) -> type[_P]:
    """Add the options that each relay has for itself."""
    return _with_options(declared, tuple(OwnKeywords.__annotations__))


class OwnPart(_Part, frozen=True, kw_only=True):
    """A relay, and what belongs to it alone."""

    url: Annotated[str, Meta(description="URL of the relay")] = ""
    token_file: Annotated[FileName, Meta(description="file that holds the token")] = ""
    proxy: Annotated[str, Meta(description="URL of a proxy without a password, or none for a direct connection")] = ""
    proxy_file: Annotated[FileName, Meta(description="file that holds the URL of a proxy with user and password")] = ""
    header_file: Annotated[FileName, Meta(description="file with a header for a gateway on each line")] = ""


@_with_own_options
class FurtherPart(OwnPart, frozen=True, kw_only=True):
    """Another relay: new connections use the first of all that answers. Its proxy, ca and insecure-http are those of
    [relay] if they are missing here; what else is missing is looked up in what `tunnel login` stored for this relay."""

    url: Annotated[str, Meta(description="URL of the relay")]


@_with_options
class RelayPart(OwnPart, frozen=True, kw_only=True):
    """The relay, and how to reach it. Options of the command line take precedence. A setting that is missing here is
    looked up in the environment, and then in what `tunnel login` stored. Secrets stand in files of mode 0600."""

    further: Annotated[list[FurtherPart], Meta(description="other relays, in the order of preference")] = []
    same_users: Annotated[bool, Meta(description="equal names of users mean the same user at all these relays")] = False
    key: Annotated[FileName, Meta(description="file with the key of exposed services; made if missing")] = ""
    rate: Annotated[Rate, Meta(description="for all entries together: " + _RATE)] = ""


class EntryPart(_Part, frozen=True, kw_only=True):
    """The settings that every kind of entry has."""

    rate: Rate = ""


class ForwardPart(EntryPart, frozen=True, kw_only=True):
    """A local port, a range of ports or a Unix socket that leads to a target or a service beyond the relay."""

    spec: Annotated[
        str, Meta(description="as for `tunnel forward`", examples=["5432:db.internal:5432", "8081:reports"])
    ]


class ExposePart(EntryPart, frozen=True, kw_only=True):
    """A local service that other users reach through the relay."""

    address: Annotated[str, Meta(description="HOST:PORT or unix:PATH of the service", examples=["127.0.0.1:8000"])]
    service: Annotated[str, Meta(description="its name at the relay; by default the name of the entry")] = ""
    public: Annotated[int, Meta(ge=0, le=65535, description="port of the relay for people without the tunnel")] = 0
    public_host: Annotated[str, Meta(description="host name for people without the tunnel, over HTTP")] = ""
    client_address: Literal["", "none", "forwarded-for", "proxy-protocol"] = ""
    backlog: Annotated[int, Meta(ge=1, le=65535, description="connections that may wait to be accepted here")] = 1024


class ProxyPart(EntryPart, frozen=True, kw_only=True):
    """A local SOCKS and HTTP proxy."""

    listen: Annotated[str, Meta(description="[BIND:]PORT", examples=["1080"])]
    timeout: Annotated[Seconds, Meta(description="seconds for a target to answer")] = 30.0
    connections: Annotated[int, Meta(ge=1, lt=1 << 20, description="limit on simultaneous connections")] = 1024


class UpFile(_Part, frozen=True, kw_only=True):
    """The file of `tunnel up`: entries of each kind by name. A string stands for a table
    with one setting (see ENTRY_TYPES)."""

    relay: RelayPart = RelayPart()
    forward: dict[str, Annotated[str, Meta(description="as for `tunnel forward`")] | ForwardPart] = {}
    expose: dict[str, Annotated[str, Meta(description="HOST:PORT or unix:PATH of the service")] | ExposePart] = {}
    proxy: dict[str, Annotated[str, Meta(description="[BIND:]PORT")] | ProxyPart] = {}


ENTRY_TYPES: dict[str, tuple[type[EntryPart], str]] = {
    "forward": (ForwardPart, "spec"),
    "expose": (ExposePart, "address"),
    "proxy": (ProxyPart, "listen"),
}
"""The kinds of entries: the table of each, and the setting that a text in its place stands for."""


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the file."""
    made = msgspec.json.schema(UpFile)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tunnel up", **made}
