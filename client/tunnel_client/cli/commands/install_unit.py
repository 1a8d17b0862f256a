"""`tunnel install-unit`: a systemd unit that keeps `tunnel up` running."""

from __future__ import annotations

import argparse

from tunnel.process.command_line import CommandAdder, CommandParser
from tunnel.process.unit_files import add_unit_options, command_words, install, is_system
from tunnel.process.units import Unit
from tunnel_client.cli.commands import up
from tunnel_client.cli.up.file import default_path
from tunnel_client.errors import UsageError

__all__ = ["add"]


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add(
        "install-unit",
        "write a systemd unit that keeps `tunnel up` running, with no rights that it does not need",
        "tunnel install-unit, or tunnel install-unit --print up -c FILE",
    )
    add_unit_options(parser, "tunnel", ("up",), "up with the file that it uses by default")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write or print the unit."""
    words = command_words(arguments, UsageError) or ["up"]
    if words[0] != "up":
        raise UsageError(
            f"a unit runs `tunnel up`, not {words[0]}: one file names all forwards, services and proxies "
            "(`tunnel up --example` writes one)"
        )
    parser = CommandParser(prog="tunnel")
    up.add(CommandAdder(parser))
    command = parser.parse_args(words)
    if command.config is None:
        if is_system(arguments):
            raise UsageError("a unit of the system needs the file of `tunnel up`: name it, as in up -c /etc/up.toml")
        words += ["-c", str(default_path())]
    unit = Unit(name="tunnel", what="tunnel up: forwards, services and proxies through the relay", stop_s=15)
    return install(arguments, unit, words, ("tunnel", "tunnel_client"), UsageError)
