"""How a command of `tunnel` finds its relay: options, then the environment, then what `tunnel login` stored."""

from __future__ import annotations

import argparse
import atexit
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunnel_client.errors import UsageError

if TYPE_CHECKING:
    from tunnel import Attachment, TraceWriter
    from tunnel_client.login_file import Login

__all__ = ["RelaySettings", "UsageError", "add_relay_options", "positive_seconds", "read_token", "relay_settings"]

# Those of tunnel.attaching and tunnel.tracing, which take long to import.
CARRIERS = ("auto", "poll", "link")
LEVELS = ("off", "connection", "packet")


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Where the relay is and who we are."""

    url: str
    token: str | None
    proxy: str | None
    ca: str | None
    carrier: str
    user_timeout: float
    trace: TraceWriter | None = None
    source: str = ""  # where the URL was found, for a person
    cert: str | None = None

    def attach(self, **more: object) -> Attachment:
        """An attachment to that relay, not yet started. UsageError where a setting cannot be used."""
        from tunnel import attach

        more.setdefault("trace", self.trace)
        try:
            return attach(
                self.url,
                token=self.token,
                proxy=self.proxy,
                ca=self.ca,
                cert=self.cert,
                carrier=self.carrier,
                user_timeout=self.user_timeout,
                **more,  # type: ignore[arg-type]
            )
        except ValueError as error:
            raise UsageError(str(error)) from None


def add_relay_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that needs a relay."""
    group = parser.add_argument_group("relay", "Options come first, then the environment, then `tunnel login`.")
    group.add_argument("--relay", default="", metavar="URL", help="the relay (default: TUNNEL_RELAY, or the login)")
    group.add_argument(
        "--token-file", default="", metavar="FILE", help="holds the token (default: TUNNEL_TOKEN, or the login)"
    )
    group.add_argument(
        "--proxy", default="", metavar="URL", help="proxy to the relay, or none (default: from environment)"
    )
    group.add_argument("--ca", metavar="FILE", help="certificates to trust instead of the system's")
    group.add_argument("--cert", metavar="FILE", help="our certificate and its key, if the relay asks for one")
    group.add_argument("--carrier", choices=CARRIERS, default="", help="how to move (default: TUNNEL_CARRIER, or auto)")
    group.add_argument(
        "--user-timeout", type=positive_seconds, default=300.0, metavar="S", help="give up after so long (300)"
    )
    group.add_argument("--trace", default="", metavar="DIR", help="write traces there, for tunnel-traces")
    group.add_argument("--trace-level", choices=LEVELS, default="packet", help="how much they tell (default: packet)")


def relay_settings(arguments: argparse.Namespace) -> RelaySettings:
    """What options, environment and login say. UsageError where something is missing or wrong."""
    carrier = arguments.carrier or os.environ.get("TUNNEL_CARRIER", "") or "auto"
    if carrier not in CARRIERS:
        raise UsageError(f"TUNNEL_CARRIER is {carrier!r}: choose one of {', '.join(CARRIERS)}")
    url, source = arguments.relay, "--relay"
    if not url:
        url, source = os.environ.get("TUNNEL_RELAY", ""), "TUNNEL_RELAY"
    login = _login(url, arguments.token_file)
    if not url:
        url, source = login.relay, "tunnel login"
    if not url:
        raise UsageError("no relay: give --relay URL, set TUNNEL_RELAY, or store one with `tunnel login URL`")
    token = _token(arguments.token_file) or login.token or None
    choice = arguments.proxy or login.proxy or "env"
    proxy = None if choice == "none" else choice
    ca = arguments.ca or login.ca or None
    trace = _trace(arguments.trace, arguments.trace_level)
    return RelaySettings(url, token, proxy, ca, carrier, arguments.user_timeout, trace, source, arguments.cert or None)


def read_token(path: Path) -> str:
    """The token in a file; UsageError when there is none."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {path}: {error}") from error
    if not token:
        raise UsageError(f"--token-file {path} is empty: it must hold the token, on one line")
    return token


def positive_seconds(text: str) -> float:
    """For argparse: a number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def _login(url: str, token_file: str) -> Login:
    """What was stored, if it is of this relay: its token goes to no other one, and neither do its certificates.

    A file that cannot be used is no matter to a command that needs nothing of it.
    """
    from tunnel_client.login_file import Login, read_login

    nothing = Login("")
    if url and (token_file or os.environ.get("TUNNEL_TOKEN")):
        return nothing
    login = read_login()
    if login is None or (url and url.rstrip("/") != login.relay.rstrip("/")):
        return nothing
    return login


def _token(file: str) -> str:
    return read_token(Path(file)) if file else os.environ.get("TUNNEL_TOKEN", "")


def _trace(directory: str, level: str) -> TraceWriter | None:
    """The command's trace: what it had not written when it was interrupted is written at the exit of the process."""
    if not directory:
        return None
    from tunnel import open_trace

    try:
        trace = open_trace(directory, level, name="client")
    except OSError as error:
        raise UsageError(f"--trace {directory}: {error.strerror}: name a directory that can be written") from error
    if trace is not None:
        atexit.register(trace.close)
    return trace
