"""`tunnel-broker install-unit`: a systemd unit that keeps a broker running."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tunnel.process.unit_files import command_words, install, is_system
from tunnel.process.units import Unit
from tunnel_client.errors import UsageError

__all__ = ["run"]

_REFUSED = (2, 4, 5)  # settings, tokens, rules; also a broker that another one has replaced
_STOP_S = 30.0  # to write what is in memory alone


def run(arguments: argparse.Namespace, parse: Callable[[list[str]], argparse.Namespace]) -> int:
    """Write or print the unit that runs `serve`. `parse` reads the words of a command."""
    words = command_words(arguments, UsageError)
    if words[:1] != ["serve"]:
        raise UsageError("a unit runs a broker: name its command, as in `tunnel-broker install-unit serve --dir DIR`")
    command = parse(words)
    if is_system(arguments) and command.service and not (command.relay and (command.token_file or command.cert)):
        raise UsageError(
            "a unit of the system needs --relay URL and --token-file FILE for a --service: it has neither what "
            "`tunnel login` stored nor TUNNEL_TOKEN"
        )
    unit = Unit(
        name="tunnel-broker",
        what="tunnel broker: keeps messages for groups of consumers",
        stop_s=_STOP_S,
        final_codes=_REFUSED,
    )
    return install(arguments, unit, words, ("tunnel-broker", "tunnel_client.cli.broker"), UsageError)
