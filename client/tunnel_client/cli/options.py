"""The options of the commands that attach to a relay."""

from __future__ import annotations

import argparse
import atexit
import math
from dataclasses import replace

import tunnel
from tunnel.carrier_names import CARRIERS
from tunnel.command_line import add_carrier_rates, tell
from tunnel.gateway_options import add_gateway_options, parse_headers, parse_proxy
from tunnel_client.errors import UsageError
from tunnel_client.settings import (
    ENCRYPTION,
    UNSET,
    USER_TIMEOUT_S,
    RelaySettings,
    find_settings,
    road_memory_path,
)

__all__ = [
    "add_insecure_http",
    "add_relay_options",
    "headers_of",
    "positive_seconds",
    "proxy_of",
    "relay_settings",
    "trace_of",
]

_USER_TIMEOUT_LEAST_S = 1
_USER_TIMEOUT_MOST_S = 4_000_000  # 46 days; a CONNECT has four bytes for the milliseconds
_OTHER_END = "the exit or from the command that offers the service"  # of a connection that this command opens
LEVELS = ("off", "connection", "packet")  # as in tunnel.tracing, which takes long to import


def add_relay_options(parser: argparse.ArgumentParser, *, accepts: bool = False, has_file: bool = False) -> None:
    """Add the options of a command that attaches to a relay. `accepts`: the command accepts connections and opens
    none. `has_file`: a file may hold the same settings."""
    over = "the file, the file over the environment, and all of them" if has_file else "the environment, and both"
    defaults = " The defaults below are for settings that the file's [relay] does not contain." if has_file else ""
    group = parser.add_argument_group(
        "relay",
        f"An option takes precedence over {over} over what `tunnel login` stored, except that a stored proxy takes "
        f"precedence over a proxy in the environment.{defaults}",
    )
    group.add_argument(
        "--relay", default="", metavar="URL", help="URL of the relay (default: TUNNEL_RELAY, or the stored one)"
    )
    group.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="file that holds the token (default: the token in TUNNEL_TOKEN, or the stored one)",
    )
    group.add_argument(
        "--proxy",
        default="",
        metavar="URL",
        help="URL of a proxy to the relay, @FILE for a file of mode 0600 that holds the URL (all users of this machine "
        "can see a password in a command line), or the word none for a direct connection (default: the stored one, or "
        "else https_proxy, http_proxy or all_proxy)",
    )
    group.add_argument(
        "--ca",
        metavar="FILE",
        help="PEM file with the authorities to trust instead of the system's (default: the stored one)",
    )
    group.add_argument(
        "--cert", metavar="FILE", help="PEM file with your certificate and its key, if the relay asks for one"
    )
    add_insecure_http(group, may_be_stored=True)
    add_gateway_options(group, may_be_stored=True)
    group.add_argument(
        "--carrier",
        choices=CARRIERS,
        default="",
        help=f"{_carrier_help()} With link or websocket, the command first tries to open the link or the WebSocket. "
        "Then it begins its work even if this try has failed, and tries again every second (default: TUNNEL_CARRIER, "
        "or auto)",
    )
    add_carrier_rates(group)
    if accepts:
        _add_acceptor_encryption(group)
    else:
        _add_initiator_encryption(group)
    _add_user_timeout(group, "its client" if accepts else "its other end" if has_file else _OTHER_END)
    _add_trace(group)


def _carrier_help() -> str:
    return " ".join(f"{name}: {kind.summary}." for name, kind in CARRIERS.items())


def _add_user_timeout(group: argparse._ArgumentGroup, other_end: str) -> None:
    group.add_argument(
        "--user-timeout",
        type=_user_timeout,
        default=USER_TIMEOUT_S,
        metavar="S",
        help="number of seconds, at least 1; a connection is lost when no sign of life has come for this long from "
        f"{other_end}; a connection that is merely idle is not lost (default: 300)",
    )


def _add_trace(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--trace", default="", metavar="DIR", help="write trace files to DIR, for tunnel-traces")
    group.add_argument("--trace-level", choices=LEVELS, default="packet", help="what --trace records (default: packet)")
    group.add_argument(
        "--trace-max",
        type=_mebibytes,
        default=1024,
        metavar="MIB",
        help="largest size of all trace files in DIR together; the oldest files are removed to stay below it "
        "(default: 1024)",
    )


def _add_acceptor_encryption(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--encryption",
        choices=ENCRYPTION,
        default="",
        help="auto: encrypt for clients that offer it, if there is a key. require: refuse clients that do not offer "
        "it, and create a key if there is none. off: never encrypt (default: TUNNEL_ENCRYPTION, or auto)",
    )
    group.set_defaults(peer_key=[])


def _add_initiator_encryption(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--encryption",
        choices=ENCRYPTION,
        default="",
        help="auto: encrypt from end to end if the exit or service can. If it cannot, refuse the connection when a "
        "key of the exit or service is known, and connect in clear when none is known. require: refuse every "
        "connection that cannot be encrypted. off: never encrypt (default: TUNNEL_ENCRYPTION, or auto)",
    )
    group.add_argument(
        "--peer-key",
        action="append",
        default=[],
        metavar="KEY",
        help="the fingerprint of the key that the exit or the service must have; `tunnel-relay exit`, `tunnel expose` "
        "or `tunnel-broker serve` prints it with --show-key, on the machine where it runs; implies --encryption "
        "require; repeatable (default: TUNNEL_PEER_KEY, or the keys of `tunnel peers`)",
    )


def add_insecure_http(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, may_be_stored: bool = False
) -> None:
    """Add the option that lets a token cross a network unencrypted. `may_be_stored`: the command uses what
    `tunnel login` stored."""
    parser.add_argument(
        "--insecure-http",
        action="store_true",
        help="allow the token and any --header to cross a network without encryption, to an http:// relay or proxy on "
        "another machine; everybody on the way can read them (default: only if TUNNEL_INSECURE_HTTP is 1"
        f"{', or if this option was stored' if may_be_stored else ''})",
    )


def relay_settings(arguments: argparse.Namespace) -> RelaySettings:
    """Return the settings from options, environment and login. Raises UsageError if one is missing or wrong."""
    found = find_settings(
        relay=arguments.relay,
        token_file=arguments.token_file,
        proxy=proxy_of(arguments) or UNSET,
        ca=arguments.ca,
        cert=arguments.cert,
        carrier=arguments.carrier,
        user_timeout=arguments.user_timeout,
        insecure_http=arguments.insecure_http,
        headers=headers_of(arguments) or None,
        hostname=arguments.hostname,
        sni=arguments.sni,
        encryption=arguments.encryption,
        peer_keys=arguments.peer_key,
        links=arguments.links,
        pull_interval=arguments.pull_interval,
    )
    # The trace comes last, when all other settings are known to be right, because opening it creates a directory.
    return replace(found, road_memory=road_memory_path(), trace=trace_of(arguments))


def headers_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the headers of the --header options. Raises UsageError if one is wrong."""
    try:
        return parse_headers(arguments.header)
    except ValueError as error:
        raise UsageError(str(error)) from None


def proxy_of(arguments: argparse.Namespace) -> str:
    """Return the proxy of the --proxy option; empty without one. Raises UsageError if its file is wrong."""
    try:
        return parse_proxy(arguments.proxy)
    except ValueError as error:
        raise UsageError(str(error)) from None


def positive_seconds(text: str) -> float:
    """Parse a number of seconds above 0, for argparse."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _user_timeout(text: str) -> float:
    seconds = positive_seconds(text)
    if not _USER_TIMEOUT_LEAST_S <= seconds <= _USER_TIMEOUT_MOST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not from {_USER_TIMEOUT_LEAST_S} to {_USER_TIMEOUT_MOST_S} seconds"
        )
    return seconds


def _mebibytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 30):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of MiB above 0")
    return int(text)


def _tell(text: str) -> None:
    tell(f"tunnel: {text}")


def trace_of(arguments: argparse.Namespace) -> tunnel.TraceWriter | None:
    """Open the command's trace. It is closed when the process exits, so an interrupted command loses no records."""
    directory = arguments.trace
    if not directory:
        return None
    try:
        bytes_max = arguments.trace_max << 20
        trace = tunnel.open_trace(directory, arguments.trace_level, name="client", bytes_max=bytes_max, tell=_tell)
    except OSError as error:
        raise UsageError(f"--trace {directory}: {error.strerror}: name a directory that can be written") from error
    if trace is not None:
        atexit.register(trace.close)
    return trace
