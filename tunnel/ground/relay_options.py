"""How to reach a relay: the options that `tunnel.attach`, `configure`, commands, files and the stored login share.

An option is declared here, once. The variables of the environment, the table [relay] of `tunnel up`, the login file and
the command lines that messages propose are made from this declaration. Elsewhere are only the option's place on the
command line and its effect. This module is imported with the first option, so it imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypedDict, TypeVar, cast

from tunnel.ground.carrier_limits import check_links, pull_interval_us
from tunnel.ground.carrier_names import CARRIERS
from tunnel.ground.defaults import USER_TIMEOUT_S

__all__ = [
    "FOR_ONE",
    "OPTIONS",
    "Option",
    "OwnKeywords",
    "RelayKeywords",
    "RelayOptions",
    "from_environment",
    "given_by",
    "given_of",
    "is_given",
    "own_options",
]

T = TypeVar("T")


class OwnKeywords(TypedDict, total=False):
    """The options that each of several relays may have for itself."""

    token: str | None
    proxy: str | None
    ca: str | None
    cert: str | Sequence[str] | None
    insecure_http: bool
    headers: Mapping[str, str] | None
    hostname: str | None
    sni: str | None


class RelayKeywords(OwnKeywords, total=False):
    """The options as keyword arguments; a missing one is not given. `tunnel.attach` says what each of them means."""

    carrier: str
    links: int
    pull_interval: float
    user_timeout: float
    encryption: str
    peer_key: str | Sequence[str]


@dataclass(frozen=True, slots=True)
class Option:
    """What an option is called outside of programs, and what it may be there.

    `kind`: the type of its value in a file; None for a secret, which has a file of its own. `choices`: the words that
    it may be. `least`, `most`: its bounds. `is_stored`: `tunnel login` stores it. `has_variable`: TUNNEL_ and
    its name is a variable of the environment. `plural`: its name where a list of values is given. `flag`: its option on
    the command line.
    """

    name: str
    default: object
    kind: Any
    text: str = ""
    choices: Sequence[str] = ()
    least: float | None = None
    most: float | None = None
    is_path: bool = False
    is_stored: bool = False
    has_variable: bool = False
    plural: str = ""
    flag: str = ""

    @property
    def variable(self) -> str:
        """The variable of the environment, if there is one."""
        return f"TUNNEL_{self.name.upper()}"


def _option(default: T, kind: object, text: str = "", *, is_secret: bool = False, **more: object) -> T:
    """Return the field of an option, for the type checker its default."""
    made: T = field(default=default, repr=not is_secret, metadata={"kind": kind, "text": text, **more})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """All of these options, each with its value or its default. Raise ValueError if a number is out of its bounds."""

    token: str | None = _option(None, None, is_secret=True, is_stored=True, has_variable=True)
    proxy: str | None = _option(
        "env", str, "URL of a proxy without a password, or none for a direct connection", is_stored=True
    )
    ca: str | None = _option(None, str, "PEM file with the authorities to trust", is_path=True, is_stored=True)
    cert: str | Sequence[str] | None = _option(None, str, "PEM file with your certificate and its key", is_path=True)
    insecure_http: bool = _option(
        False, bool, "allow the token to cross a network without encryption", is_stored=True, has_variable=True
    )
    headers: Mapping[str, str] | None = _option(None, None, is_secret=True, is_stored=True, flag="--header")
    hostname: str | None = _option(None, str, "host name for a gateway, if it is not that of the URL", is_stored=True)
    sni: str | None = _option(None, str, "server name in TLS", is_stored=True)
    carrier: str = _option("auto", str, choices=tuple(CARRIERS), has_variable=True)
    links: int = _option(1, int, "number of links to keep open", least=1, most=4)
    pull_interval: float = _option(0.0, float, "seconds between pulls without a link", least=0)
    user_timeout: float = _option(
        USER_TIMEOUT_S, float, "seconds without an answer; then connections are lost", least=1, most=4_000_000
    )
    encryption: str = _option("auto", str, choices=("off", "auto", "require"), has_variable=True)
    peer_key: str | Sequence[str] = _option(
        (), list[str], "keys that exits and services must have", has_variable=True, plural="peer_keys"
    )

    def for_another(self, own: OwnKeywords) -> Self:
        """Return the options for another relay. Of the present ones, it gets neither the secrets nor what a gateway
        asks for."""
        return replace(self, **(FOR_ONE | own))

    def __post_init__(self) -> None:
        check_links(self.links)
        pull_interval_us(self.pull_interval)


def _declared(one: Any) -> Option:
    return Option(one.name, one.default, **{"flag": f"--{one.name.replace('_', '-')}", **one.metadata})


FOR_ONE: OwnKeywords = {"token": None, "headers": None, "hostname": None, "sni": None, "cert": None}
"""What one relay alone may know, with the values that another relay gets."""

OPTIONS = {one.name: _declared(one) for one in fields(RelayOptions)}
"""By name, in the order of help texts."""


def is_given(value: object) -> bool:
    """Return whether a value says more than that nothing was said."""
    return value is not None and value is not False and value not in ("", [], ())


def own_options(given: str | OwnKeywords | None) -> OwnKeywords:
    """Return the options of a relay beside the first, which are given as a token or as keywords.

    Raise TypeError if one is no option that a relay has for itself.
    """
    if given is None or isinstance(given, str):
        return {"token": given}
    for name in given.keys() - OwnKeywords.__annotations__.keys():
        raise TypeError(f"{name!r} is no option of one relay: each may have {', '.join(OwnKeywords.__annotations__)}")
    return given


def given_by(source: object) -> RelayKeywords:
    """Return the options that attributes of `source`, a command line or a table of a file, give."""
    found = {
        name: getattr(source, option.plural, None) or getattr(source, name, None) for name, option in OPTIONS.items()
    }
    return cast(RelayKeywords, {name: value for name, value in found.items() if is_given(value)})


def given_of(keywords: RelayKeywords) -> RelayKeywords:
    """Return the keyword arguments that are given. None means no token or no proxy, and nothing for others.

    Raise TypeError if one is unknown.
    """
    for name in keywords.keys() - OPTIONS.keys():
        raise TypeError(f"got an unexpected keyword argument {name!r}")
    found = {name: value for name, value in keywords.items() if name in ("token", "proxy") or is_given(value)}
    return cast(RelayKeywords, found)


def from_environment(environment: Mapping[str, str], *, flags_only: bool = False) -> RelayKeywords:
    """Return the options that variables of the environment give. A flag is given by 1."""
    found: dict[str, object] = {}
    for name, option in OPTIONS.items():
        text = environment.get(option.variable, "") if option.has_variable else ""
        if option.kind is bool:
            found |= {name: True} if text == "1" else {}
        elif text and not flags_only:
            found[name] = tuple(text.split()) if option.plural else text
    return cast(RelayKeywords, found)
