"""The options of the commands that attach to a relay."""

from __future__ import annotations

import argparse
import atexit
import math
from dataclasses import replace

import tunnel
from tunnel.ground.carrier_names import CARRIERS
from tunnel.ground.relay_options import OPTIONS, RelayKeywords
from tunnel.process.command_line import add_carrier_limits, tell
from tunnel.process.gateway_options import TOKEN_FILES_HELP, Joined, add_path_options, add_same_users, given_keywords
from tunnel_client.errors import UsageError
from tunnel_client.settings import RelaySettings, find_settings, road_memory_path

__all__ = ["add_relay_options", "given", "positive_seconds", "relay_settings", "trace_of"]

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
        "--relay",
        default="",
        action=Joined,
        metavar="URL",
        help="URL of the relay; repeat it to name several, the preferred one first: new connections use the first that "
        "answers and leads to the target (default: TUNNEL_RELAY, or the stored one)",
    )
    group.add_argument(
        "--token-file",
        default="",
        action=Joined,
        metavar="FILE",
        help=f"file that holds the token; {TOKEN_FILES_HELP} (default: the token in TUNNEL_TOKEN, or the stored one)",
    )
    if accepts:
        add_same_users(group)
    add_path_options(group, may_be_stored=True)
    group.add_argument(
        "--carrier",
        choices=CARRIERS,
        default="",
        help=f"{_carrier_help()} With link or websocket, the command first tries to open the link or the WebSocket. "
        "Then it begins its work even if this try has failed, and tries again every second (default: TUNNEL_CARRIER, "
        "or auto)",
    )
    add_carrier_limits(group)
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
        choices=OPTIONS["encryption"].choices,
        default="",
        help="auto: encrypt for clients that offer it, if there is a key. require: refuse clients that do not offer "
        "it, and create a key if there is none. off: never encrypt (default: TUNNEL_ENCRYPTION, or auto)",
    )


def _add_initiator_encryption(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--encryption",
        choices=OPTIONS["encryption"].choices,
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


def relay_settings(arguments: argparse.Namespace) -> RelaySettings:
    """Return the settings from options, environment and login. Raises UsageError if one is missing or wrong."""
    found = find_settings(relay=arguments.relay, token_file=arguments.token_file, **given(arguments))
    # The trace comes last, when all other settings are known to be right, because opening it creates a directory.
    return replace(found, road_memory=road_memory_path(), trace=trace_of(arguments))


def given(arguments: argparse.Namespace) -> RelayKeywords:
    """Return the options of a relay that a command line gives. Raises UsageError if one is wrong."""
    try:
        return given_keywords(arguments)
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
