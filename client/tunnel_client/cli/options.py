"""The options of every command that needs a relay."""

from __future__ import annotations

import argparse
import atexit
import math
from dataclasses import replace

import tunnel
from tunnel_client.errors import UsageError
from tunnel_client.settings import CARRIERS, UNSET, USER_TIMEOUT_S, RelaySettings, find_settings

__all__ = ["add_relay_options", "positive_seconds", "relay_settings"]

LEVELS = ("off", "connection", "packet")  # those of tunnel.tracing, which takes long to import


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
        "--user-timeout", type=positive_seconds, default=USER_TIMEOUT_S, metavar="S", help="give up after so long (300)"
    )
    group.add_argument("--trace", default="", metavar="DIR", help="write traces there, for tunnel-traces")
    group.add_argument("--trace-level", choices=LEVELS, default="packet", help="how much they tell (default: packet)")


def relay_settings(arguments: argparse.Namespace) -> RelaySettings:
    """What options, environment and login say. UsageError where something is missing or wrong."""
    found = find_settings(
        relay=arguments.relay,
        token_file=arguments.token_file,
        proxy=arguments.proxy or UNSET,
        ca=arguments.ca,
        cert=arguments.cert,
        carrier=arguments.carrier,
        user_timeout=arguments.user_timeout,
    )
    return replace(found, trace=_trace(arguments.trace, arguments.trace_level))  # last: it makes a directory


def positive_seconds(text: str) -> float:
    """For argparse: a number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def _trace(directory: str, level: str) -> tunnel.TraceWriter | None:
    """The command's trace: what it had not written when it was interrupted is written at the exit of the process."""
    if not directory:
        return None
    try:
        trace = tunnel.open_trace(directory, level, name="client")
    except OSError as error:
        raise UsageError(f"--trace {directory}: {error.strerror}: name a directory that can be written") from error
    if trace is not None:
        atexit.register(trace.close)
    return trace
