"""The relay to use and our credentials there: from arguments, then the environment, then the stored login."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tunnel
from tunnel import private_files
from tunnel.attaching import import_all
from tunnel.carrier_names import CARRIERS
from tunnel.carrier_rates import check_links, pull_interval_us
from tunnel.command_line import allows_insecure_http
from tunnel.unused import let_go
from tunnel_client.errors import UsageError

__all__ = [
    "ENCRYPTION",
    "UNSET",
    "USER_TIMEOUT_S",
    "RelaySettings",
    "Unset",
    "find_settings",
    "read_token",
    "road_memory_path",
]

ENCRYPTION = ("off", "auto", "require")  # as in tunnel.encryption.decisions
USER_TIMEOUT_S = 300.0


class Unset(enum.Enum):
    """The type of UNSET, which means "not given" for settings whose None already has another meaning."""

    UNSET = "not given"


UNSET = Unset.UNSET


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The URL of a relay, our credentials there, and how to reach it."""

    url: str
    token: str | None
    proxy: str | None
    ca: str | None
    carrier: str
    user_timeout: float
    trace: tunnel.TraceWriter | None = None
    source: str = ""  # where the URL came from: --relay, TUNNEL_RELAY or tunnel login
    cert: str | None = None
    insecure_http: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # for a gateway before the relay
    hostname: str = ""
    sni: str = ""
    encryption: str = "auto"
    peer_keys: tuple[str, ...] = ()
    known_peers: Path | None = None  # without this file, the key of a new peer is accepted and not remembered
    key: str = ""  # the file of our own key, for services
    links: int = 1
    pull_interval: float = 0.0  # seconds
    rate: str = ""  # of all connections together, such as 20 MiB/s
    road_memory: Path | None = None  # the file that remembers which road carries; without it, nothing is remembered

    def attach(self, **more: object) -> tunnel.Attachment:
        """Create an attachment to the relay without starting it. Raises UsageError if a setting cannot be used."""
        import_all()  # here, so that a setting that cannot be used is found before the attachment is started
        more = {
            "trace": self.trace,
            "links": self.links,
            "pull_interval": self.pull_interval,
            "rate": self.rate,
            "road_memory": self.road_memory,
            **more,
        }
        try:
            return tunnel.attach(
                self.url,
                token=self.token,
                proxy=self.proxy,
                ca=self.ca,
                cert=self.cert,
                carrier=self.carrier,
                user_timeout=self.user_timeout,
                insecure_http=self.insecure_http,
                headers=self.headers,
                hostname=self.hostname or None,
                sni=self.sni or None,
                encryption=self.encryption,
                peer_key=self.peer_keys,
                known_peers=self.known_peers,
                key=self.key or None,
                **more,  # type: ignore[arg-type]
            )
        except ValueError as error:
            raise UsageError(str(error)) from None

    def check(self) -> None:
        """Raise UsageError if no attachment can be made with these settings."""
        let_go(self.attach())


def road_memory_path() -> Path | None:
    """Return the file in which this user's commands remember roads; None if the user has no home directory."""
    try:
        return private_files.cache_directory() / "roads.json"
    except ValueError:
        return None


def find_settings(
    *,
    relay: str | None = None,
    token_file: str | None = None,
    token: str | Unset | None = UNSET,
    proxy: str | Unset | None = UNSET,
    ca: str | None = None,
    cert: str | None = None,
    carrier: str | None = None,
    user_timeout: float = USER_TIMEOUT_S,
    insecure_http: bool = False,
    headers: Mapping[str, str] | None = None,
    hostname: str | None = None,
    sni: str | None = None,
    encryption: str | None = None,
    peer_keys: Sequence[str] = (),
    links: int = 1,
    pull_interval: float = 0.0,
) -> RelaySettings:
    """Collect the settings from the arguments, then from the environment, then from the stored login.

    A proxy stored by the login takes precedence over the proxy variables. `token=None` means no token, `proxy=None` a
    direct connection; UNSET means that the setting is looked up. Raises UsageError if a setting is missing or wrong.
    """
    carrier = _choice(carrier, "carrier", tuple(CARRIERS))
    encryption = _choice(encryption, "encryption", ENCRYPTION)
    try:
        check_links(links)
        pull_interval_us(pull_interval)
    except ValueError as error:
        raise UsageError(str(error)) from None
    url, source = relay or "", "--relay"
    if not url:
        url, source = os.environ.get("TUNNEL_RELAY", ""), "TUNNEL_RELAY"
    from tunnel_client.login_file import (  # here: a program that only imports this module need not load msgspec
        known_peers_path,
        login_for,
    )

    has_token = bool(token_file or os.environ.get("TUNNEL_TOKEN"))
    login = login_for(url, has_token=has_token)
    if not url:
        url, source = login.relay, "tunnel login"
    if not url:
        raise UsageError("no relay: give --relay URL, set TUNNEL_RELAY, or store one with `tunnel login URL`")
    if isinstance(token, Unset):
        token = _token(token_file or "") or login.token or None
    if isinstance(proxy, Unset):
        proxy = login.proxy or "env"
    return RelaySettings(
        url=url,
        token=token,
        proxy=None if (proxy or "none").lower() == "none" else proxy,
        ca=ca or login.ca or None,
        carrier=carrier,
        user_timeout=user_timeout,
        source=source,
        cert=cert or None,
        insecure_http=allows_insecure_http(insecure_http) or login.insecure_http,
        headers=login.headers if headers is None else headers,
        hostname=hostname or login.hostname,
        sni=sni or login.sni,
        encryption=encryption,
        peer_keys=tuple(peer_keys) or tuple(os.environ.get("TUNNEL_PEER_KEY", "").split()),
        known_peers=known_peers_path(),
        links=links,
        pull_interval=pull_interval,
    )


def _choice(given: str | None, name: str, choices: Sequence[str]) -> str:
    """Return a setting that is one of several words: as given, or from its variable, or `auto`."""
    variable = f"TUNNEL_{name.upper()}"
    chosen = given or os.environ.get(variable, "") or "auto"
    if chosen not in choices:
        origin = f"the {name}" if given else variable
        raise UsageError(f"{origin} is {chosen!r}: choose one of {', '.join(choices)}")
    return chosen


def read_token(path: Path) -> str:
    """Return the token in a file. Raises UsageError if there is none, or if other users can read the file."""
    try:
        return private_files.read_token(path)
    except ValueError as error:
        raise UsageError(f"--token-file {error}") from None


def _token(file: str) -> str:
    return read_token(Path(file)) if file else os.environ.get("TUNNEL_TOKEN", "")
