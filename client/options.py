"""How a command of `tunnel` finds its relay: options, then the environment."""

import argparse
import atexit
import os
from dataclasses import dataclass
from pathlib import Path

from tunnel import Attachment, TraceWriter, attach, open_trace
from tunnel.entry import CARRIERS
from tunnel.tracing import LEVELS

__all__ = ["RelaySettings", "UsageError", "add_relay_options", "relay_settings"]


class UsageError(Exception):
    """The command was not called in a way that can work: exit code 2. The text says what to do."""


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

    def attach(self, **more: object) -> Attachment:
        """An attachment to that relay, not yet started."""
        more.setdefault("trace", self.trace)
        return attach(
            self.url,
            token=self.token,
            proxy=self.proxy,
            ca=self.ca,
            carrier=self.carrier,
            user_timeout=self.user_timeout,
            **more,  # type: ignore[arg-type]
        )


def add_relay_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that needs a relay."""
    group = parser.add_argument_group("relay")
    group.add_argument("--relay", default="", metavar="URL", help="the relay (default: TUNNEL_RELAY)")
    group.add_argument("--token-file", default="", metavar="FILE", help="holds the token (default: TUNNEL_TOKEN)")
    group.add_argument("--proxy", default="env", metavar="URL", help="proxy to the relay (default: from environment)")
    group.add_argument("--ca", metavar="FILE", help="certificates to trust instead of the system's")
    group.add_argument("--carrier", choices=CARRIERS, default="", help="how to move (default: TUNNEL_CARRIER, or auto)")
    group.add_argument("--user-timeout", type=float, default=300.0, metavar="S", help="give up after so long (300)")
    group.add_argument("--trace", default="", metavar="DIR", help="write traces there, for tunnel-traces")
    group.add_argument("--trace-level", choices=LEVELS, default="packet", help="how much they tell (default: packet)")


def relay_settings(arguments: argparse.Namespace) -> RelaySettings:
    """What the options and the environment say. UsageError where something is missing or wrong."""
    url = arguments.relay or os.environ.get("TUNNEL_RELAY", "")
    if not url:
        raise UsageError("no relay: give --relay URL, or set TUNNEL_RELAY")
    carrier = arguments.carrier or os.environ.get("TUNNEL_CARRIER", "") or "auto"
    if carrier not in CARRIERS:
        raise UsageError(f"TUNNEL_CARRIER is {carrier!r}: choose one of {', '.join(CARRIERS)}")
    proxy = None if arguments.proxy in ("", "none") else arguments.proxy
    token = _token(arguments.token_file)
    trace = _trace(arguments.trace, arguments.trace_level)
    return RelaySettings(url, token, proxy, arguments.ca, carrier, arguments.user_timeout, trace)


def _token(file: str) -> str | None:
    if not file:
        return os.environ.get("TUNNEL_TOKEN") or None
    try:
        return Path(file).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: {error}") from error


def _trace(directory: str, level: str) -> TraceWriter | None:
    """The command's trace: what it had not written when it was interrupted is written at the exit of the process."""
    try:
        trace = open_trace(directory, level, name="client") if directory else None
    except OSError as error:
        raise UsageError(f"--trace {directory}: {error.strerror}: name a directory that can be written") from error
    if trace is not None:
        atexit.register(trace.close)
    return trace
